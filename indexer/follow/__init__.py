"""Direct mode: sockets of engines, and the ingestion of a rank that they feed.

Publishers are `indexer.watch`.
"""
