"""One rank's event stream as a state machine: order, gaps, replays, restarts and trust.

No sockets and no codecs.
"""
