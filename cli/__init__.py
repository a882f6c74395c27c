"""The commands of `warmpath`, which ask a running router or need none.

The router's own process is `serve`.
"""
