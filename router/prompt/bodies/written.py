"""The bytes of a body's JSON that stand for its prompt where no tokens are known."""

import re
from hashlib import blake2b

from warmpath.prefixstore.chats.conversation import BILLING_HEADER

MEDIUM = re.compile(rb'(?<=[",])[A-Za-z0-9+/=_-]{1024,}+(?=")')
"""A medium in base64: its tokens are far fewer than its bytes."""
MARK = re.compile(rb',\s*"cache_control"\s*:\s*(?:null|\{[^{}]*\})')
"""A mark that clients move to the newest messages; no template writes it."""
BILLING = re.compile(rb'"%b(?:[^"\\]|\\.)*"' % re.escape(BILLING_HEADER.encode()))
"""A text that differs in each request of a conversation, and that engines leave out."""


def written(json: bytes) -> bytes:
    """Return JSON without parts that are no text of its prompt; a medium becomes a digest."""
    if b"base64" in json:
        json = MEDIUM.sub(
            lambda found: blake2b(found[0], digest_size=16).hexdigest().encode(), json
        )
    if b'"cache_control"' in json:
        json = MARK.sub(b"", json)
    return BILLING.sub(b'""', json)
