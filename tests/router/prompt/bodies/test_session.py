"""Whose session a body is, where no header says so: those of Codex and Claude Code, and hostile ones."""

import json
from typing import Any

import pytest

from warmpath.router.prompt.bodies.fields import LARGE_BYTES, raw_fields
from warmpath.router.prompt.bodies.session import OF_SESSIONS, session_of

ID = "0197a3c0-7d52-7f10-9a00-0123456789ab"
OTHER = "11111111-2222-4333-8444-555555555555"
OF_CLAUDE = f"user_{'0f' * 32}_account_{OTHER}_session_{ID}"
"""Claude Code's `metadata.user_id` until early 2026, and after it."""
NEWER = json.dumps({"device_id": "0f" * 32, "account_uuid": OTHER, "session_id": ID})


@pytest.mark.parametrize("size", [0, LARGE_BYTES])
@pytest.mark.parametrize(
    ("body", "session"),
    [
        ({"prompt_cache_key": ID}, ID),
        ({"prompt_cache_key": "k" * 256}, "k" * 256),
        ({"metadata": {"user_id": OF_CLAUDE}}, ID),
        ({"metadata": {"user_id": OF_CLAUDE.replace(OTHER, "")}}, ID),
        ({"metadata": {"user_id": NEWER}}, ID),
        ({"prompt_cache_key": "k", "metadata": {"user_id": NEWER}}, "k"),
        ({"prompt_cache_key": None, "metadata": {"user_id": NEWER}}, ID),
        ({}, ""),
        *(({"prompt_cache_key": one}, "") for one in ("", 7, ["k"], "k" * 257, "é", "a\tb")),
        *(({"prompt_cache_key": one}, "") for one in ("\x1b[2J", "k" * 10_000, [7] * 10_000)),
        *(({"metadata": one}, "") for one in (None, 7, {}, {"user_id": "u"}, {"x": ["y"] * 10_000})),
        ({"metadata": {"user_id": "user_session_of-nobody"}}, ""),
    ],
)  # fmt: skip
async def test_a_body_s_cache_key_or_claude_code_s_user_names_its_session(
    body: dict[str, Any], session: str, size: int
) -> None:
    raw = json.dumps({"messages": [{"role": "user", "content": "x" * size}]} | body).encode()
    assert session_of(await raw_fields(raw, ("messages", *OF_SESSIONS))) == session
