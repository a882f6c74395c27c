"""The session that a request's body names, in a field of OpenAI's API or of Claude Code's requests."""

import re
from collections.abc import Mapping

import msgspec

from warmpath.process.bytes import UNREADABLE
from warmpath.router.prompt.bodies.fields import RawFields
from warmpath.router.prompt.limits import MOST_SESSION_BYTES

KEY, METADATA = OF_SESSIONS = ("prompt_cache_key", "metadata")
"""Codex, among others, gives each session a cache key of its own. Claude Code puts its session into
`metadata.user_id`: `user_…_account_…_session_UUID`, and since 2026 JSON with a `session_id`."""
MOST_METADATA_BYTES = 1024
"""Bytes at the beginning of a body's metadata that are searched for a session."""
MOST_KEY_BYTES = len('""') + MOST_SESSION_BYTES * len(r"\u0061")
"""Most bytes of a cache key's JSON."""

_UUID = rb"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"
_OF_CLAUDE = re.compile(rb'session(?:_|_id\\?"\s*:\s*\\?")(%b)' % _UUID)


def fit_session(name: str) -> str:
    """Return a session's name; empty unless it is printable ASCII of at most MOST_SESSION_BYTES."""
    is_fit = name.isascii() and name.isprintable() and len(name) <= MOST_SESSION_BYTES
    return name if is_fit else ""


def session_of(body: RawFields) -> str:
    """Return the session that a body names, of which the fields OF_SESSIONS are read; empty if none."""
    fields = body.fields
    if KEY in fields and (named := fit_session(_text(fields[KEY], body.strings))):
        return named
    if METADATA in fields:
        beginning = bytes(memoryview(fields[METADATA])[:MOST_METADATA_BYTES])
        if found := _OF_CLAUDE.search(beginning):
            return found[1].decode()
    return ""


def _text(raw: msgspec.Raw, strings: Mapping[str, str]) -> str:
    """Return a text, or what a stand-in stands for; empty for a long one, and for anything else."""
    if memoryview(raw).nbytes > MOST_KEY_BYTES:
        return ""
    try:
        text = msgspec.json.decode(raw, type=str)
    except UNREADABLE:
        return ""
    return strings.get(text, text)
