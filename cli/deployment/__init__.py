"""Checks of a deployment from end to end: engines, events, tokens, Redis and certificates.

What a running router finds by its picks is `router.diagnosis`.
"""
