"""Commands of `warmpath` that ask a running router, or need none.

The router's own process is `serve`.
"""
