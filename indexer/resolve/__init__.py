"""Turns one rank's engine hashes into keys and slots; does not order events and has no sockets."""
