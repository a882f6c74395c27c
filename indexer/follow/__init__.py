"""Direct mode: the sockets to engines, and the ingestion of each rank's events.

`indexer.watch` follows publishers.
"""
