"""The errors of msgspec's decoders for bytes that a peer, a caller or a file chose."""

import msgspec

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Malformed or unexpected content; text that is not UTF-8; lists or objects that are nested too deeply.

The last two are not msgspec's own errors, so a handler that names only msgspec's lets them through.
"""
