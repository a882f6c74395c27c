"""Whose session a request is: the headers of agents, of sub-agents, and of hostile clients."""

import pytest

from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.config.schema import PickerHeadersTable
from warmpath.router.endpoint_picker.pick import name_session

OURS = PickerHeadersTable()
CLAUDE, AGENT, PARENT = (f"x-claude-code-{one}-id" for one in ("session", "agent", "parent-agent"))


@pytest.mark.parametrize(
    ("headers", "session", "parent"),
    [
        ({CLAUDE: "s"}, "s", ""),
        ({CLAUDE: "s", AGENT: "a"}, "a", "s"),
        ({CLAUDE: "s", AGENT: "a", PARENT: "b"}, "a", "b"),
        ({"session-id": "s", "thread-id": "t", "x-codex-parent-thread-id": "s"}, "t", "s"),
        ({"x-session-id": "s", "x-parent-session-id": "s"}, "s", ""),
        ({"x-dynamo-session-id": "d", "x-dynamo-parent-session-id": "p", CLAUDE: "s"}, "d", "p"),
        ({"x-warmpath-session": "w", "x-dynamo-session-id": "d"}, "w", ""),
        ({"x-warmpath-session": "", "session_id": "s"}, "s", ""),
        ({"x-session-id": "s" * 256, "x-parent-session-id": "p" * 257}, "s" * 256, ""),
        *(({"x-session-id": one}, "", "") for one in ("s" * 257, "\xe9", "a\tb", "\x1b[2J")),
        ({"x-parent-session-id": "p"}, "", ""),
    ],
)  # fmt: skip
def test_the_first_header_that_a_request_has_names_its_session(
    headers: dict[str, str], session: str, parent: str
) -> None:
    request = pb.PickRequest()
    name_session(request, headers, OURS)
    assert (request.session_id, request.parent_session_id) == (session, parent)
    assert not request.session_final


@pytest.mark.parametrize(("value", "is_final"), [("true", True), ("1", True), ("false", False)])
def test_a_session_s_last_request_says_so(value: str, is_final: bool) -> None:
    request = pb.PickRequest()
    name_session(request, {CLAUDE: "s", "x-dynamo-session-final": value}, OURS)
    assert request.session_final is is_final


def test_headers_whose_names_are_configured_away_name_none() -> None:
    request = pb.PickRequest()
    ours = PickerHeadersTable(session=("x-own", ""), parent_session=(), session_final=())
    name_session(request, {CLAUDE: "s", "": ""}, ours)
    assert not request.session_id
    name_session(request, {CLAUDE: "s", "x-own": "o", "": ""}, ours)
    assert (request.session_id, request.parent_session_id) == ("o", "")
