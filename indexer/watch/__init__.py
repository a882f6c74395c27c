"""Publisher mode: a pod's cache as journal and snapshot, and the rank that follows it.

`indexer.shared` does the same through Redis.
"""
