"""Publisher mode: a pod's cache as journal and snapshot, and the rank that follows it.

Redis is `indexer.shared`.
"""
