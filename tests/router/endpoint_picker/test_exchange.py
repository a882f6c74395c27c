"""An exchange by sequences of events, as pickers are tested with: what it asks for, and what it answers."""

import json
from dataclasses import replace
from typing import Any

import pytest

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
from warmpath.router.endpoint_picker.events import (
    Event,
    Modes,
    OrderError,
    Reply,
    WantPick,
)
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
FROM_ONE = Reply("response", "headers", TOLD, ("x-warmpath-reason",))
REFUSAL = refusal(503, "NO_POD", "no pod serves 'm'")


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
    assert want == WantPick(
        body=b'{"model":"m"}', model="", session="s",
        priority="high", tenant="t", subset=None, headers=want.headers, is_shadow=False,
    )  # fmt: skip
    assert want.headers["x-warmpath-session"] == "s"
    assert want.headers[":path"] == "/v1/completions"
    assert one.request.picked(PICKED) == [TO_BOTH, *sent_back(b'{"model":"m"}')]
    assert one.request.held_bytes == 0


@pytest.mark.parametrize("mode", [BodyMode.NONE, BodyMode.STREAMED])
def test_where_the_body_comes_after_the_answer_to_the_headers_the_pick_comes_with_it(
    mode: BodyMode,
) -> None:
    one = exchange()
    assert picking(one, post(modes=Modes(mode))).body == b""
    assert one.request.picked(PICKED) == [TO_BOTH]


@pytest.mark.parametrize("mode", [BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL])
def test_a_buffered_body_is_answered_with_the_pick(mode: BodyMode) -> None:
    one = exchange()
    headers = post(modes=Modes(mode))
    assert one.receive(headers) == [Reply("request", "headers", remove=NAMES.in_request)]
    assert not one.request.holds
    assert picking(one, body(b"{}")).body == b"{}"
    put = ((DESTINATION, BOTH),)
    assert one.request.picked(PICKED) == [Reply("request", "body", put=put, endpoints=BOTH)]


def test_a_body_that_the_gateway_holds_in_part_is_picked_for_by_that_part() -> None:
    one = exchange()
    one.receive(post(modes=Modes(BodyMode.BUFFERED_PARTIAL)))
    want = picking(one, body(b'{"model":"m","pro', ends=False))
    assert want.body == b'{"model":"m","pro'


def test_trailers_end_a_body() -> None:
    one = exchange()
    replies = pick(one, post(), body(b"{}", ends=False), REQUEST_TRAILERS)
    assert replies == [TO_BOTH, *sent_back(b"{}", ends=False), Reply("request", "trailers")]


def test_trailers_without_a_body_are_told_of_the_pick_where_the_headers_have_gone() -> None:
    one = exchange()
    assert pick(one, post(modes=BUFFERED), REQUEST_TRAILERS) == [
        Reply("request", "trailers", endpoints=BOTH)
    ]


def test_a_long_body_is_sent_back_in_pieces_that_gateways_take() -> None:
    one = exchange(10 * PIECE_BYTES)
    long = bytes(range(256)) * 1000
    replies = pick(one, post(), body(long))
    assert [len(one.data or b"") for one in replies[1:]] == [PIECE_BYTES] * 4 + [8000]
    assert b"".join(one.data for one in replies[1:]) == long
    assert [one.ends for one in replies[1:]] == [False] * 4 + [True]


def test_a_body_that_does_not_end_in_time_is_picked_for_by_its_beginning() -> None:
    one = exchange()
    one.receive(post())
    one.receive(body(b"{", ends=False))
    [want] = one.request.hold_no_more()
    assert isinstance(want, WantPick)
    assert one.request.hold_no_more() == []
    assert one.request.picked(PICKED) == [TO_BOTH, *sent_back(b"{", ends=False)]
    assert one.receive(REQUEST_TRAILERS) == [Reply("request", "trailers")]


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
    assert set(reply.remove) >= {*PICKERS_OWN, "x-warmpath-pod", "x-data-parallel-rank"}
    assert reply.put == ()
    assert reply.endpoints == ""


def test_no_engine_tells_clients_what_only_the_picker_may_tell() -> None:
    one = exchange()
    picking(one, post(ends=True))
    one.request.let_through()
    spoofed = Event("response", "headers", headers=((":status", "200"), ("x-warmpath-pod", "x")))
    assert one.receive(spoofed) == [Reply("response", "headers", (), NAMES.in_response)]


def test_a_response_passes_and_its_usage_is_reported() -> None:
    one = exchange()
    pick(one, post(), body(b"{}"))
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
    one = exchange()
    pick(one, post(modes=BUFFERED), body(b"{}"))
    one.receive(answer(kind="text/event-stream"))
    reply = Reply("response", "body")
    assert one.receive(piece(b": ping\n\n")) == [reply]
    assert one.receive(token()) == [Report("b-1", "first_token"), reply]
    assert one.receive(token("b")) == [reply]
    assert one.receive(piece(event({"choices": [], "usage": USAGE}))) == [reply]
    assert one.receive(piece(b"data: [DONE]\n\n", ends=True)) == [
        Report("b-1", "finished", "", 0, 48, 50, 2), reply,
    ]  # fmt: skip


def test_trailers_end_a_response() -> None:
    one = exchange()
    pick(one, post(), body(b"{}"))
    one.receive(answer(kind="application/grpc"))
    one.receive(piece(b"x"))
    assert one.receive(RESPONSE_TRAILERS) == [
        Report("b-1", "finished"), Reply("response", "trailers"),
    ]  # fmt: skip


def test_headers_may_end_a_response() -> None:
    one = exchange()
    pick(one, post(ends=True))
    ended = one.receive(answer(204, ends=True))
    assert ended == [Report("b-1", "finished"), FROM_ONE]


def test_the_fall_back_that_served_is_reported_and_told() -> None:
    one = exchange()
    pick(one, post(), body(b"{}"))
    [report, reply] = one.receive(answer(served=TWO))
    assert report == Report("b-1", "started", *PICKED.endpoints[TWO][:2])
    assert dict(reply.put)["x-warmpath-pod"] == "pod-2"  # type: ignore[union-attr]
    assert dict(reply.put)["x-warmpath-cached-tokens"] == "16"  # type: ignore[union-attr]
    one = exchange()
    pick(one, post(), body(b"{}"))
    assert one.receive(answer(served=ONE)) == [FROM_ONE]


def test_an_endpoint_that_was_not_told_releases_the_booking_and_is_not_named() -> None:
    one = exchange()
    pick(one, post(), body(b"{}"))
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
    one = exchange()
    pick(one, post(), body(b"{}"))
    report, told = one.receive(answer(status))
    assert report == Report("b-1", "failed", is_refusal=status not in (408, 504))
    assert isinstance(told, Reply)
    assert told.part == "headers"
    assert told.put == TOLD[:1]
    assert one.receive(piece(b"{}", ends=True)) == sent_back(b"{}", side="response")
    assert one.closed() == []


def test_figures_that_contradict_each_other_are_not_reported() -> None:
    one = exchange()
    pick(one, post(), body(b"{}"))
    one.receive(answer())
    told = {"usage": USAGE | {"prompt_tokens": 5}}
    [report, *_] = one.receive(piece(json.dumps(told).encode(), ends=True))
    assert report == Report("b-1", "finished", output_tokens=2)


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
    assert one.receive(answer(served=TWO)) == [Report("b-1", "started", *PICKED.endpoints[TWO][:2])]
    [report] = one.receive(piece(json.dumps({"usage": USAGE}).encode(), ends=True))
    assert report == Report("b-1", "finished", "", 0, 48, 50, 2)


def test_a_watched_exchange_that_is_not_picked_for_goes_on() -> None:
    one = exchange()
    picking(one, post(ends=True, modes=Modes(is_watched=True)))
    assert one.refused(REFUSAL) == []
    assert one.receive(answer(ends=True)) == []


def test_a_watched_exchange_of_which_nobody_tells_who_served_it_does_not_count() -> None:
    one = exchange()
    pick(one, post(ends=True, modes=Modes(is_watched=True)))
    assert one.receive(answer()) == [Report("b-1", "failed", is_refusal=True)]


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
    "headers",
    [[("upgrade", "WebSocket"), ("connection", "Upgrade")], [(":method", "CONNECT")]],
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
    one = exchange()
    pick(one, post(modes=BUFFERED), body(b"{}"))
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


def test_a_gateways_own_answer_has_its_reason_and_no_pod() -> None:
    one = exchange()
    pick(one, post(), body(b"{}"))
    reports = one.receive(answer(503, ends=True, own_reason="NO_POD"))
    *_, reply = reports
    assert isinstance(reply, Reply)
    assert reply.part == "headers"
    assert reply.put == (("x-warmpath-reason", "NO_POD"),)
    assert reports[:-1] == [Report("b-1", "failed")], "the engine may still owe an answer"
