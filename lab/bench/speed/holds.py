"""The longest hold of the event loop by a call to a router with a very large fleet.

A call runs through the whole service, from the request's bytes to the answer's; its longest step counts.
"""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from pathlib import Path
from typing import Any

from warmpath.indexer.keys.key import pack_tokens
from warmpath.lab.bench.figure import Figure
from warmpath.lab.bench.stand.asked import BOOKED, Asked
from warmpath.lab.bench.stand.look_up import BLOCKS, TOKENS, no_collector
from warmpath.lab.bench.stand.made_up_fleet import MODEL, batches_of, feed, prompt_of
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.admission.in_flight import InFlight
from warmpath.router.calls.intake import Intake
from warmpath.router.calls.pick import PickAnswerer
from warmpath.router.calls.score import Answerer
from warmpath.router.calls.service import SERVICE, RouterService
from warmpath.router.config import schema as config
from warmpath.router.config.files import engine_credentials
from warmpath.router.ending import Drain
from warmpath.router.metrics.calls import Metrics
from warmpath.router.pods.table import Pod, PodTable, Role, Status
from warmpath.router.prompt.limits import PromptLimits
from warmpath.router.prompt.reader import PromptReader
from warmpath.router.prompt.texts import texts

PODS = 2000
PROMPTS = 20
COMMON = 8
"""Blocks of one more prompt, at its beginning, that every pod holds."""
CHAT_BYTES = 8 << 20
MOST_MS = 10.0


def measure(*, quick: bool) -> list[Figure]:
    """Measure every method, and Pick in each form that takes more work."""
    return asyncio.run(_measured(10 if quick else 40))


async def _measured(rounds: int) -> list[Figure]:
    engines = engine_credentials(config.ProbeTable(), Path())
    async with texts(config.Config([config.ModelSpec(MODEL)]), Path(), engines) as read:
        router = _Router(PromptReader(read, PromptLimits(2 * CHAT_BYTES, 1 << 20)))
        figures = []
        with no_collector():
            for name, method, request in _calls():
                longest, whole = [], []
                for call in range(rounds + 3):
                    seconds = await router.steps(method, request(call))
                    longest.append(max(seconds) * 1e3)
                    whole.append(sum(seconds) * 1e3)
                # The first few calls fill caches.
                hold, cost = (_median(taken[3:]) for taken in (longest, whole))
                text = (
                    f"{name}, {PODS:,} pods: longest hold of the loop, p50 ({cost:.1f} ms in all)"
                )
                figures.append(Figure(text, hold, "ms", 1.0, "1 ms", goal=MOST_MS))
        return figures


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _calls() -> list[tuple[str, str, Callable[[int], Any]]]:
    """Return each measurement's name and method, and a function that makes its nth request."""
    prompts = [_prompt(seed) for seed in range(PROMPTS)]
    loads = [
        pb.PodLoad(pod=f"pod-{number}", running=BOOKED, waiting=number % 5, kv_usage=0.5)
        for number in range(PODS)
    ]
    common = _prompt(PROMPTS)
    names = [f"pod-{number}" for number in range(PODS)]
    escapes = json.dumps([{"role": "user", "content": "\u4e2d" * (CHAT_BYTES // 6)}])
    chat = pb.Prompt(chat_body=f'{{"model": "{MODEL}", "messages": {escapes}}}'.encode())

    def asks(**fields: Any) -> Callable[[int], Any]:
        return lambda call: pb.PickRequest(prompt=prompts[call % PROMPTS], **fields)

    return [
        ("Score", "Score", lambda call: pb.ScoreRequest(prompt=prompts[call % PROMPTS])),
        ("Score of what all hold", "Score", lambda _: pb.ScoreRequest(prompt=common)),
        ("Pick", "Pick", asks()),
        ("Pick of what all hold", "Pick", lambda _: pb.PickRequest(prompt=common)),
        ("Pick by sglang", "Pick", asks(policy="sglang")),
        ("Pick by session-hash", "Pick", asks(policy="session-hash", session_id="s")),
        ("Pick with every pod's name", "Pick", asks(pods=names)),
        ("Pick with every rank's load", "Pick", asks(loads=loads)),
        ("Pick in shadow", "Pick", asks(shadow=True)),
        ("Pick where prefill and decoding are apart", "Pick", asks(disaggregated=True)),
        ("Pick by least-load", "Pick", asks(policy="least-load")),
        ("Pick of a chat of 8 MB of escapes", "Pick", lambda _: pb.PickRequest(prompt=chat)),
        ("Explain", "Explain", lambda call: pb.ExplainRequest(prompt=prompts[call % PROMPTS])),
        (
            "Report with every rank's load",
            "Report",
            lambda _: pb.ReportRequest(booking_id="a", event=pb.ReportRequest.FAILED, loads=loads),
        ),
        ("ListPods", "ListPods", lambda _: pb.ListPodsRequest()),
        ("ListDecisions", "ListDecisions", lambda _: pb.ListDecisionsRequest()),
        ("Diagnose", "Diagnose", lambda _: pb.DiagnoseRequest()),
    ]


def _prompt(seed: int) -> pb.Prompt:
    ids = pack_tokens(prompt_of(seed, BLOCKS)[:TOKENS])
    return pb.Prompt(model=MODEL, token_ids_packed=ids)


class _Router:
    """A router's parts put together as by `router.assemble.running`, with a made-up clock."""

    def __init__(self, reader: PromptReader) -> None:
        self._now = 0.0
        asked = Asked(PODS, PROMPTS)
        ranks = asked.ranks
        [common] = batches_of(PROMPTS, COMMON, events=1, each=COMMON)
        for rank in ranks:
            feed(rank, [common])
        roles: tuple[Role, ...] = ("both", "prefill", "decode")
        pods = PodTable(
            Pod(
                rank.pod,
                f"10.0.0.1:{number}",
                MODEL,
                (rank,),
                Status(healthy=True),
                roles[number % 3],
            )
            for number, rank in enumerate(ranks)
        )
        asked.load()
        clock = self._clock
        picks = PickAnswerer(
            reader,
            pods,
            asked.ingest,
            asked.picking,
            decisions=asked.decisions,
            attribution=asked.attribution,
            clock=clock,
            wall_offset=lambda: 0.0,
        )
        answerer = Answerer(
            reader, asked.picking.scorer, pods, clock=clock, wall_offset=lambda: 0.0
        )
        largest = config.LimitsTable().largest_message
        calls, streams = (
            InFlight(2 * largest, largest, seconds=1.0, clock=clock) for _ in range(2)
        )
        service = RouterService(
            answerer,
            picks,
            Metrics(),
            Drain(clock),
            Intake(calls, streams, Metrics(), seconds=1.0),
            tokenize_seconds=1.0,
        )
        self._methods = service.methods()

    def _clock(self) -> float:
        return self._now

    async def steps(self, method: str, request: Any) -> list[float]:
        """Answer a request; return the seconds of each of the call's steps."""
        self._now += 0.001
        answering: Any = self._methods[f"/{SERVICE.full_name}/{method}"].run
        call = _Steps(answering(_Call(request.SerializeToString())))
        await call
        return call.seconds


class _Call:
    """The client's end of a call."""

    peer = "ipv4:127.0.0.1:1"
    metadata = ()
    seconds_left = 1.0

    def __init__(self, message: bytes) -> None:
        self._message = message
        self.next_bytes = len(message)

    async def read(self) -> bytes:
        return self._message

    def put(self, message: bytes) -> None:
        del message  # empty for a Report of a pick that is not known

    async def write(self, message: bytes) -> None:
        assert message

    def if_gone(self, call: Callable[[], None]) -> None:
        del call  # every answer is read


class _Steps:
    """Awaits a call and keeps the processor time of each step, seconds of this thread.

    On an idle machine that is the time for which the step holds the loop.
    """

    def __init__(self, call: Coroutine[Any, Any, Any]) -> None:
        self._call = call
        self.seconds: list[float] = []

    def __await__(self) -> Generator[Any, None, Any]:
        steps = self._call.__await__()
        step: Callable[[], Any] = partial(steps.send, None)
        while True:
            begun = time.thread_time()
            try:
                waited_for = step()
            except StopIteration as end:
                return end.value
            finally:
                self.seconds.append(time.thread_time() - begun)
            try:
                yield waited_for
            except BaseException as error:  # noqa: BLE001  the call gets it
                step = partial(steps.throw, error)
            else:
                step = partial(steps.send, None)
