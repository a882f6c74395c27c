"""Channels are closed once, and never under a call, also where certificates and tokens are replaced; rules of retries."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.examples import examples
from tests.router.access.guarded import Folder, channel_to, code_of, serving
from tests.warmpath.client.scripted_router import CLIENTS
from warmpath.client import credentials
from warmpath.client.async_client import AsyncClient
from warmpath.client.connection import MOST_ATTEMPTS, Connection, Line, Retry
from warmpath.client.failure import CallError
from warmpath.process.tls import TlsPaths


class Changing:
    """Credentials that a test changes."""

    def __init__(self) -> None:
        self.of_channel: object = object()

    def look(self, now: float) -> None:
        """Do nothing: the test says when they change."""


class Channel:
    """A channel that carries nothing."""

    def __init__(self, shown: object) -> None:
        self.shown = shown

    def unary_unary(self, *_: object, **__: object) -> None:
        """Return what makes a call, if a call were made."""

    unary_stream = stream_stream = unary_unary


class Channels(RuleBasedStateMachine):
    """One client's calls."""

    def __init__(self) -> None:
        super().__init__()
        self.shown = Changing()
        self.opened: list[Channel] = []
        self.closed: list[Channel] = []
        self.calls: list[Line] = []
        self.is_closed = False
        self.connection = Connection("127.0.0.1:1")
        self.connection._credentials = self.shown  # type: ignore[assignment]
        self.connection._open = self.open  # type: ignore[assignment,method-assign]

    def open(self, shown: object) -> Channel:
        self.opened.append(Channel(shown))
        return self.opened[-1]

    def close(self, channels: list[Channel]) -> None:
        for channel in channels:
            assert self.is_closed or channel not in [line.channel for line in self.calls]
            self.closed.append(channel)

    @precondition(lambda self: not self.is_closed)
    @rule()
    def call(self) -> None:
        line = self.connection._take()
        self.calls.append(line)
        assert line.channel.shown is self.shown.of_channel

    @precondition(lambda self: self.calls)
    @rule(which=st.integers(0, 9))
    def end(self, which: int) -> None:
        line = self.calls.pop(which % len(self.calls))
        self.close(self.connection._give_back(line))
        left = set(self.opened) - set(self.closed)
        newest = set() if self.is_closed else set(self.opened[-1:])
        assert left - newest <= {one.channel for one in self.calls}, "an idle channel stays open"

    @rule()
    def change(self) -> None:
        self.shown.of_channel = object()

    @precondition(lambda self: not self.is_closed)
    @rule()
    def shut(self) -> None:
        self.is_closed = True
        self.close(self.connection._end())

    @invariant()
    def no_channel_is_closed_twice(self) -> None:
        assert len(self.closed) == len(set(self.closed))


Channels.TestCase.settings = settings(max_examples=examples(300), stateful_step_count=30)
TestChannels = Channels.TestCase


UNAVAILABLE, EXHAUSTED = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED

FAILURES = st.builds(
    CallError, st.sampled_from(list(grpc.StatusCode)), st.just("text"),
    reason=st.sampled_from([None, "NO_POD", "OVERLOADED"]),
    retry_after=st.one_of(st.none(), st.floats(0, 100)), may_repeat=st.booleans(),
)  # fmt: skip


@st.composite
def rules(draw: st.DrawFn) -> Retry:
    first = draw(st.floats(0, 60))
    return Retry(draw(st.integers(1, MOST_ATTEMPTS)), first, draw(st.floats(first, 60)))


@given(
    rules(), FAILURES, st.integers(1, MOST_ATTEMPTS), st.booleans(), st.floats(0, 100),
    st.integers(0, 9),
)  # fmt: skip
def test_a_call_is_made_again_only_where_that_can_help_and_harms_nobody(
    rule: Retry, failure: CallError, made: int, is_repeatable: bool, left: float, seed: int
) -> None:
    pause = rule.pause(failure, made, is_repeatable=is_repeatable, left=left, rng=Random(seed))
    if pause is None:
        return
    assert made < rule.attempts
    assert 0 <= pause < left
    assert failure.may_repeat
    assert failure.reason != "NO_POD"
    assert failure.code in (UNAVAILABLE, EXHAUSTED)
    least, bound = (
        failure.retry_after or 0.0,
        min(rule.most_seconds, rule.first_seconds * 2 ** (made - 1)),
    )
    assert pause >= least
    if failure.code is EXHAUSTED:
        assert pause == failure.retry_after
    else:
        assert pause <= max(least, bound)
    assert is_repeatable or failure.reason is not None or failure.retry_after is not None


def pause(failure: CallError, *, is_repeatable: bool = True, made: int = 1) -> float | None:
    return Retry().pause(failure, made, is_repeatable=is_repeatable, left=10.0, rng=Random(0))


def test_a_pick_without_a_name_is_made_again_only_after_a_refusal_of_the_router() -> None:
    assert pause(CallError(UNAVAILABLE, ""), is_repeatable=False) is None
    assert pause(CallError(UNAVAILABLE, "", reason="ENDING"), is_repeatable=False) is not None
    assert pause(CallError(EXHAUSTED, "", retry_after=0.5), is_repeatable=False) == 0.5


def test_pauses_grow_and_are_random() -> None:
    rng = Random(1)
    rule, failure = Retry(attempts=10, most_seconds=60), CallError(UNAVAILABLE, "")
    pauses = [
        [rule.pause(failure, made, is_repeatable=True, left=99, rng=rng) or 0.0 for _ in range(200)]
        for made in (1, 4)
    ]
    early, late = map(max, pauses)
    assert 0.09 < early <= 0.1
    assert 0.7 < late <= 0.8


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ((0,), "attempts is 0; it must be 1 to 10"),
        ((11,), "attempts is 11"),
        ((3, -0.1), r"first_seconds and most_seconds are -0\.1 and 1\.0; they must be 0 to 60"),
        ((3, 2.0, 1.0), r"are 2\.0 and 1\.0"),
        ((3, 1.0, float("nan")), "they must be 0 to 60"),
    ],
)
def test_impossible_rules_are_refused(values: tuple[float, ...], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Retry(*values)  # type: ignore[arg-type]


LIST_PODS = "/warmpath.v1.Router/ListPods"
OPERATOR = "spiffe://example/operator"


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.fixture(autouse=True)
def _looks_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "LOOK_SECONDS", 0.0)


class Shown:
    """The files of a client, with copies of what it shows and trusts."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self.files = folder.old.certificate("op-1", OPERATOR).copy("shown")
        self.ca = folder.path / "trusted.pem"
        self.ca.write_bytes(folder.old.ca.read_bytes())

    @property
    def tls(self) -> TlsPaths:
        return TlsPaths(self.ca, self.files.cert, self.files.key)

    async def rotate(self, address: Any) -> None:
        """Replace the router's files, wait until it uses them, and replace the client's."""
        second = self._folder.new.certificate("op-2", OPERATOR)
        self._folder.rotate()
        while True:
            async with channel_to(address, self._folder.new, second) as channel:
                if await code_of(channel, LIST_PODS) is grpc.StatusCode.OK:
                    break
        self.files.replace(second)
        self.ca.write_bytes(self._folder.new.ca.read_bytes())


@pytest.mark.parametrize("kind", CLIENTS)
async def test_new_certificates_are_shown_on_a_new_channel(folder: Folder, kind: str) -> None:
    shown = Shown(folder)
    async with (
        serving(folder.config(tls=True, mutual=True)) as router,
        CLIENTS[kind](router.address, tls=shown.tls) as client,
    ):
        connection = getattr(client, "client", client)
        assert not (await client.pods()).pods
        first = connection._newest
        await shown.rotate(router)
        while connection._newest is first:
            await client.pods()
        await client.pods()


async def test_a_stream_goes_on_over_the_channel_that_it_began_on(folder: Folder) -> None:
    shown = Shown(folder)
    is_rotated = asyncio.Event()

    async def prompts() -> AsyncIterator[list[int]]:
        yield [1, 2]
        await is_rotated.wait()
        yield [1, 2, 3]

    async with (
        serving(folder.config(tls=True, mutual=True)) as router,
        AsyncClient(router.address, model="m", tls=shown.tls) as client,
    ):
        answers = client.score_stream(prompts())
        first = await anext(answers)
        await shown.rotate(router)
        await client.pods()
        assert client._newest is not None
        is_rotated.set()
        second = await anext(answers)
        assert [one.scores and one.scores.prompt_tokens for one in (first, second)] == [2, 3]
        with pytest.raises(StopAsyncIteration):
            await anext(answers)


@pytest.mark.parametrize("kind", CLIENTS)
async def test_a_client_that_lacks_tls_or_a_certificate_is_told_so(
    folder: Folder, kind: str
) -> None:
    authority = folder.old.ca
    async with serving(folder.config(tls=True, mutual=True)) as router:
        for tls, lacks in (
            (None, "TLS (tls=TlsPaths(…))"),
            (TlsPaths(authority), "a certificate (tls.cert, tls.key)"),
        ):
            async with CLIENTS[kind](router.address, tls=tls) as client:
                with pytest.raises(CallError, match="UNAVAILABLE: ") as raised:
                    await client.pods()
                assert f"it wants {lacks}" in raised.value.hint
                assert str(raised.value).endswith(f"({raised.value.hint})")
                assert raised.value.hint not in raised.value.message


async def first_refusal(client: Any) -> grpc.StatusCode:
    while True:
        try:
            await client.pods()
        except CallError as error:
            return error.code


@pytest.mark.parametrize("kind", CLIENTS)
async def test_a_new_token_is_sent_from_the_next_call_on(folder: Folder, kind: str) -> None:
    own = folder.path / "own-token"
    own.write_bytes((folder.path / "reader").read_bytes())
    async with (
        serving(folder.config(tls=True)) as router,
        CLIENTS[kind](router.address, tls=TlsPaths(folder.old.ca), token_file=own) as client,
    ):
        await client.pods()
        (folder.path / "reader").write_text("the-next-token-of-it")
        assert await first_refusal(client) is grpc.StatusCode.UNAUTHENTICATED
        own.write_text("the-next-token-of-it")
        await client.pods()
