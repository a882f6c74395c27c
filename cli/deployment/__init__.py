"""Checks of a deployment from end to end: engines, events, tokens, Redis and certificates.

`router.diagnosis` has the checks that a running router makes of its own picks.
"""
