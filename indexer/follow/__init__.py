"""Direct mode: the sockets to engines, and the ingestion of each rank's events.

Following publishers is `indexer.watch`.
"""
