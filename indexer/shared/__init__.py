"""The shared index: which pods hold which blocks, in Redis, for every router of a deployment.

The index in a router's own memory is `indexer.index`.
"""
