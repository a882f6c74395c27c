"""An exchange by sequences of events, as pickers are tested with: what it asks for, and what it answers.

One file: an exchange is one state machine.
"""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from tests.router.endpoint_picker.gateway_events import (
    BUFFERED,
    NAMES,
    ONE,
    PICKED,
    REQUEST_TRAILERS,
    RESPONSE_TRAILERS,
    TWO,
    USAGE,
    answer,
    body,
    event,
    exchange,
    pick,
    picking,
    piece,
    post,
    refusal,
    token,
)
from warmpath.router.endpoint_picker.events import Event, Modes, OrderError, Reply, WantPick
from warmpath.router.endpoint_picker.exchange import Exchange
from warmpath.router.endpoint_picker.protocol import (
    DESTINATION,
    PICKERS_OWN,
    PIECE_BYTES,
    BodyMode,
    without,
)
from warmpath.router.inference_api.model_name import Renaming
from warmpath.router.pick.report import Report

BOTH = f"{ONE},{TWO}"
TO_BOTH = Reply(
    "request",
    "headers",
    ((DESTINATION, BOTH),),
    without(NAMES.in_request, ((DESTINATION, BOTH),)),
    BOTH,
)
TOLD = (
    ("x-warmpath-pod", "pod-1"),
    ("x-warmpath-cached-tokens", "48"),
    ("x-warmpath-saved-seconds", "0.250"),
)
OF_REFUSALS = ("x-warmpath-reason", "x-llm-d-request-dropped-reason")
FROM_ONE = Reply("response", "headers", TOLD, OF_REFUSALS)
REFUSAL = refusal(503, "NO_POD", "no pod serves 'm'")


def picked(*events: Event) -> Exchange:
    """Return an exchange that is picked for with these events, or with a short body."""
    one = exchange()
    pick(one, *(events or (post(), body(b"{}"))))
    return one


def sent_back(*pieces: bytes, side: str = "request", ends: bool = True) -> list[Reply]:
    last = len(pieces) - 1
    return [
        Reply(side, "body", data=piece, ends=ends and at == last, is_sent_back=True)  # type: ignore[arg-type]
        for at, piece in enumerate(pieces)
    ]


def test_a_body_in_chunks_is_held_until_its_end_and_sent_on_after_the_pick() -> None:
    one = exchange()
    named = ("x-warmpath-priority", "high"), ("x-gateway-inference-fairness-id", "t")
    assert one.receive(post(("x-warmpath-session", "s"), *named)) == []
    assert one.receive(body(b'{"model":', ends=False)) == []
    assert one.request.held_bytes == 9
    assert one.request.holds
    [want] = one.receive(body(b'"m"}'))
    assert want == WantPick(b'{"model":"m"}', None, want.headers, is_shadow=False)  # type: ignore[union-attr]
    assert want.headers.items() >= {("x-warmpath-session", "s"), *named, ("", "")}  # type: ignore[union-attr]
    assert want.headers[":path"] == "/v1/completions"
    assert one.request.picked(PICKED) == [TO_BOTH, *sent_back(b'{"model":"m"}')]
    assert one.request.held_bytes == 0


@pytest.mark.parametrize("mode", [BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL])
def test_a_buffered_body_is_answered_with_the_pick(mode: BodyMode) -> None:
    one = exchange()
    headers = post(modes=Modes(mode))
    assert one.receive(headers) == [Reply("request", "headers", remove=NAMES.in_request)]
    assert not one.request.holds
    assert picking(one, body(b"{}")).body == b"{}"
    put = ((DESTINATION, BOTH),)
    assert one.request.picked(PICKED) == [Reply("request", "body", put=put, endpoints=BOTH)]


@pytest.mark.parametrize(
    ("events", "asked", "replies"),
    [
        pytest.param([post(modes=Modes(BodyMode.NONE))], b"", [TO_BOTH], id="no body"),
        pytest.param([post(modes=Modes(BodyMode.STREAMED))], b"", [TO_BOTH], id="a body that follows the answer"),
        pytest.param(
            [post(), body(b"{}", ends=False), REQUEST_TRAILERS], b"{}",
            [TO_BOTH, *sent_back(b"{}", ends=False), Reply("request", "trailers")], id="trailers end a body",
        ),
        pytest.param(
            [post(modes=BUFFERED), REQUEST_TRAILERS], b"",
            [Reply("request", "trailers", endpoints=BOTH)], id="trailers alone where the headers have gone",
        ),
    ],
)  # fmt: skip
def test_a_pick_is_told_with_the_first_part_that_can_tell_it(
    events: list[Event], asked: bytes, replies: list[Reply]
) -> None:
    one = exchange()
    assert picking(one, *events).body == asked
    assert one.request.picked(PICKED) == replies


def test_a_body_that_the_gateway_holds_in_part_is_picked_for_by_that_part() -> None:
    one = exchange()
    one.receive(post(modes=Modes(BodyMode.BUFFERED_PARTIAL)))
    want = picking(one, body(b'{"model":"m","pro', ends=False))
    assert want.body == b'{"model":"m","pro'


def test_a_long_body_is_sent_back_in_pieces_that_gateways_take() -> None:
    one = exchange(10 * PIECE_BYTES)
    long = bytes(range(256)) * 1000
    replies = pick(one, post(), body(long))
    assert [len(one.data or b"") for one in replies[1:]] == [PIECE_BYTES] * 4 + [8000]
    assert b"".join(one.data for one in replies[1:]) == long
    assert [one.ends for one in replies[1:]] == [False] * 4 + [True]


def test_a_gateway_that_holds_the_body_itself_is_waited_for() -> None:
    one = exchange()
    one.receive(post(modes=BUFFERED))
    assert one.request.hold_no_more() == []


def test_the_subset_is_what_the_last_event_of_the_request_told() -> None:
    one = exchange()
    early, late = frozenset(["10.0.0.1:80"]), frozenset(["10.0.0.2:80"])
    headers = post(subset=early)
    assert picking(one, headers, body(b"", ends=False), body(b"")).subset == early
    one = exchange()
    assert picking(one, headers, body(b"", subset=late)).subset == late


def test_no_client_sends_on_headers_that_only_the_picker_may_set() -> None:
    spoofed = [(name, "9.9.9.9:1") for name in NAMES.in_request]
    one = exchange()
    picking(one, post(*spoofed), body(b"{}"))
    [reply, _] = one.request.let_through()
    assert set(reply.remove) >= {
        *PICKERS_OWN, "x-gateway-destination-endpoint", "x-gateway-destination-endpoint-subset",
        "x-gateway-destination-endpoint-served", "x-warmpath-pod", "x-warmpath-cached-tokens",
        "x-data-parallel-rank", "x-prefiller-host-port", "x-kv-cache-source-host-port",
    }  # fmt: skip
    assert reply.put == ()
    assert reply.endpoints == ""


def test_no_engine_tells_clients_what_only_the_picker_may_tell() -> None:
    one = exchange()
    picking(one, post(ends=True))
    one.request.let_through()
    spoofed = Event("response", "headers", headers=((":status", "200"), ("x-warmpath-pod", "x")))
    assert one.receive(spoofed) == [Reply("response", "headers", (), NAMES.in_response)]


def test_a_response_passes_and_its_usage_is_reported() -> None:
    one = picked()
    assert one.receive(answer()) == [FROM_ONE]
    assert one.receive(piece(b'{"usage": ')) == sent_back(
        b'{"usage": ', side="response", ends=False
    )
    rest = json.dumps(USAGE).encode() + b"}"
    [report, reply] = one.receive(piece(rest, ends=True))
    assert [reply] == sent_back(rest, side="response")
    assert report == Report("b-1", "finished", "", 0, 48, 50, 2)
    assert one.is_over
    assert one.closed() == []


def test_the_first_token_of_a_streamed_response_is_reported_once() -> None:
    one = picked(post(modes=BUFFERED), body(b"{}"))
    one.receive(answer(kind="text/event-stream"))
    reply = Reply("response", "body")
    assert one.receive(piece(b": ping\n\n")) == [reply]
    assert one.receive(token()) == [Report("b-1", "first_token"), reply]
    assert one.receive(token("b")) == [reply]
    assert one.receive(piece(event({"choices": [], "usage": USAGE}))) == [reply]
    assert one.receive(piece(b"data: [DONE]\n\n", ends=True)) == [
        Report("b-1", "finished", "", 0, 48, 50, 2), reply,
    ]  # fmt: skip


FROM_TWO = Reply(
    "response",
    "headers",
    (
        ("x-warmpath-pod", "pod-2"),
        ("x-warmpath-cached-tokens", "16"),
        ("x-warmpath-saved-seconds", "0.125"),
    ),
    OF_REFUSALS,
)
STARTED_ON_TWO = Report("b-1", "started", "pod-2", 0)
CONTRADICTING = json.dumps({"usage": USAGE | {"prompt_tokens": 5}}).encode()
WATCHED = Modes(is_watched=True)
NO_POD = (("x-warmpath-reason", "NO_POD"),)


@pytest.mark.parametrize(
    ("request_", "response", "actions"),
    [
        pytest.param(
            [post(), body(b"{}")], [answer(kind="application/grpc"), piece(b"x"), RESPONSE_TRAILERS],
            [Report("b-1", "finished"), Reply("response", "trailers")], id="trailers end it",
        ),
        pytest.param([post(ends=True)], [answer(204, ends=True)], [Report("b-1", "finished"), FROM_ONE], id="headers end it"),
        pytest.param([post(), body(b"{}")], [answer(served=ONE)], [FROM_ONE], id="the first endpoint served"),
        pytest.param([post(), body(b"{}")], [answer(served=TWO)], [STARTED_ON_TWO, FROM_TWO], id="the fall-back served"),
        pytest.param(
            [post(), body(b"{}")], [answer(), piece(CONTRADICTING, ends=True)],
            [Report("b-1", "finished", output_tokens=2), *sent_back(CONTRADICTING, side="response")],
            id="figures that contradict each other",
        ),
        pytest.param(
            [post(ends=True, modes=WATCHED)], [answer()], [Report("b-1", "failed", is_refusal=True)],
            id="watched, and nobody tells who served",
        ),
        pytest.param(
            [post(), body(b"{}")], [answer(503, ends=True, own_reason="NO_POD")],
            [Report("b-1", "failed"), Reply("response", "headers", NO_POD, without(NAMES.in_response, NO_POD))],
            id="the gateway's own answer: the engine may still owe one",
        ),
    ],
)  # fmt: skip
def test_what_a_response_tells_is_reported_and_told(
    request_: list[Event], response: list[Event], actions: list[Reply | Report]
) -> None:
    one = picked(*request_)
    for event_ in response[:-1]:
        one.receive(event_)
    assert one.receive(response[-1]) == actions


def test_an_endpoint_that_was_not_told_releases_the_booking_and_is_not_named() -> None:
    one = picked()
    assert one.receive(answer(served="10.0.0.9:80")) == [
        Report("b-1", "failed", is_refusal=True),
        Reply("response", "headers", (), NAMES.in_response),
    ]  # fmt: skip
    replies = one.receive(piece(b"{}", ends=True))
    assert replies == sent_back(b"{}", side="response")
    assert one.closed() == []


@pytest.mark.parametrize("status", [400, 408, 429, 500, 503, 504])
def test_an_engines_error_releases_the_booking_at_once_and_tells_nothing_of_the_cache(
    status: int,
) -> None:
    one = picked()
    report, told = one.receive(answer(status))
    assert report == Report("b-1", "failed", is_refusal=status not in (408, 504))
    assert isinstance(told, Reply)
    assert told.part == "headers"
    assert told.put == TOLD[:1]
    assert one.receive(piece(b"{}", ends=True)) == sent_back(b"{}", side="response")
    assert one.closed() == []


def test_where_the_gateway_sends_no_body_of_the_response_its_end_is_the_streams() -> None:
    one = exchange()
    pick(one, post(modes=Modes(response=BodyMode.NONE)), body(b"{}"))
    one.receive(answer())
    assert not one.is_over
    assert one.closed() == [Report("b-1", "finished")]


def test_a_request_without_a_pick_whose_headers_have_gone_goes_on() -> None:
    one = exchange()
    picking(one, post(modes=BUFFERED), body(b"{}"))
    assert one.request.let_through() == [Reply("request", "body")]
    assert one.closed() == []


def test_a_response_without_a_request_passes() -> None:
    one = exchange()
    told = answer(modes=Modes(response=BodyMode.STREAMED))
    assert one.receive(told) == [Reply("response", "headers", (), NAMES.in_response)]
    assert one.receive(piece(b"x", ends=True)) == [Reply("response", "body")]
    assert one.closed() == []


def test_a_gateways_own_answer_ends_a_request_that_is_held() -> None:
    one = exchange()
    one.receive(post())
    one.receive(body(b"{", ends=False))
    assert one.receive(answer(408)) == [Reply("response", "headers", (), NAMES.in_response)]
    assert one.request.held_bytes == 0
    assert one.request.hold_no_more() == []


def test_a_watched_exchange_is_a_shadow_pick_and_is_not_answered() -> None:
    one = exchange()
    watched = Modes(BodyMode.STREAMED, BodyMode.STREAMED, is_watched=True)
    want = picking(one, post(modes=watched), body(b"{", ends=False), body(b"}"))
    assert want.is_shadow
    assert want.body == b"{}"
    assert one.request.picked(PICKED) == []
    one.response.booked(PICKED)
    assert one.receive(answer(served=TWO)) == [Report("b-1", "started", "pod-2", 0)]
    [report] = one.receive(piece(json.dumps({"usage": USAGE}).encode(), ends=True))
    assert report == Report("b-1", "finished", "", 0, 48, 50, 2)


def test_a_watched_exchange_that_is_not_picked_for_goes_on() -> None:
    one = exchange()
    picking(one, post(ends=True, modes=Modes(is_watched=True)))
    assert one.refused(REFUSAL) == []
    assert one.receive(answer(ends=True)) == []


def test_a_router_in_shadow_changes_nothing_for_a_gateway_that_waits_for_it() -> None:
    one = exchange(is_shadow=True)
    want = picking(one, post(modes=BUFFERED), body(b"{}"))
    assert want.is_shadow
    assert one.request.picked(PICKED) == [Reply("request", "body")]
    one.response.booked(PICKED)
    started = Report("b-1", "started", "pod-2", 0)
    assert one.receive(answer(served=TWO)) == [started, Reply("response", "headers")]
    [report, reply] = one.receive(piece(json.dumps({"usage": USAGE}).encode(), ends=True))
    assert (report, reply) == (
        Report("b-1", "finished", "", 0, 48, 50, 2), Reply("response", "body")
    )  # fmt: skip
    refused = exchange(is_shadow=True)
    picking(refused, post(modes=BUFFERED), body(b"{}"))
    assert refused.refused(REFUSAL) == [Reply("request", "body")]


@pytest.mark.parametrize(
    "events",
    [
        [body(b"")],
        [REQUEST_TRAILERS],
        [piece(b"")],
        [RESPONSE_TRAILERS],
        [post(), post()],
        [answer(), answer()],
        [answer(), post()],
        [answer(ends=True), piece(b"")],
        [answer(), RESPONSE_TRAILERS, RESPONSE_TRAILERS],
    ],
)
def test_what_http_does_not_allow_is_refused(events: list[object]) -> None:
    one = exchange()
    *before, last = events
    for other in before:
        one.receive(other)  # type: ignore[arg-type]
    with pytest.raises(OrderError):
        one.receive(last)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", BodyMode)
@pytest.mark.parametrize(
    "headers", [[("upgrade", "WebSocket"), ("connection", "Upgrade")], [(":method", "CONNECT")]]
)
def test_a_websocket_is_picked_for_at_its_headers(
    mode: BodyMode, headers: list[tuple[str, str]]
) -> None:
    modes = Modes(mode, BodyMode.STREAMED)
    one = exchange()
    asked = Event("request", "headers", headers=((":path", "/v1/realtime"), *headers), modes=modes)
    told, *rest = pick(one, asked)
    assert isinstance(told, Reply)
    assert told.part == "headers"
    assert not rest
    assert told.endpoints == f"{ONE},{TWO}"
    is_kept = mode in (BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL)
    assert told.shows_body == (BodyMode.STREAMED if is_kept else None)


def test_the_stream_may_end_where_no_part_of_a_body_is_here() -> None:
    one = exchange()
    assert one.may_end
    one.receive(post())
    assert not one.may_end
    picking(one, body(b"{}"))
    assert not one.may_end
    one.request.picked(PICKED)
    assert one.may_end
    one.receive(answer())
    assert not one.may_end, "Envoy may have sent a chunk that it expects back"
    one = picked(post(modes=BUFFERED), body(b"{}"))
    one.receive(answer())
    assert one.may_end


RENAMED = replace(PICKED, body=b"{}", renaming=Renaming("demo", "gpt"))


def renaming(modes: Modes, response: Event) -> tuple[Exchange, Any]:
    """Return an exchange whose model has another name, and the reply to its response's headers."""
    one = exchange()
    head, *rest = [post(modes=modes), body(b"{}")]
    picking(one, head, *rest)
    one.request.picked(RENAMED)
    one.response.booked(RENAMED)
    *_, reply = one.receive(response)
    return one, reply


def test_a_piece_for_a_piece_is_renamed_within_itself() -> None:
    one, _ = renaming(BUFFERED, answer())
    replies = [
        one.receive(piece(data))[-1] for data in (b'{"model":"demo",', b'"model":"de', b'mo"}')
    ]
    assert replies == [
        Reply("response", "body", data=b'{"model":"gpt",'), Reply("response", "body"), Reply("response", "body")
    ]  # fmt: skip


def test_what_is_held_of_a_response_comes_before_its_trailers() -> None:
    one, _ = renaming(Modes(), answer())
    assert [
        action
        for action in one.receive(piece(b'{"model":'))
        if (isinstance(action, Reply) and action.part == "body")
    ] == [Reply("response", "body", data=b"{", is_sent_back=True)]
    *_, left, trailers = one.receive(RESPONSE_TRAILERS)
    assert left == Reply("response", "body", data=b'"model":', is_sent_back=True)
    assert trailers == Reply("response", "trailers")


@pytest.mark.parametrize(
    "response",
    [answer(kind="audio/wav"), answer(ends=True),
     Event("response", "headers", headers=((":status", "200"), ("content-type", "application/json"), ("content-encoding", "gzip")))],
)  # fmt: skip
def test_other_responses_keep_their_length(response: Event) -> None:
    _, reply = renaming(Modes(), response)
    assert "content-length" not in reply.remove
