"""A gateway's traffic to engines of which one, or all, have a fault at a time.

It picks for each request, sends it to the first candidate, and reports its progress. Each fault lasts
for most of a slot. Until a router can have noticed it, requests may go to the engine that has it; after
that next to none may. A request to an engine that was well all the time must succeed, and so must every
pick, whatever the engines do.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

import aiohttp
import grpc.aio

from tests.soak.engines import Fault, ServingEngine, new_prompt
from warmpath.client.failure import failure_of
from warmpath.indexer.keys.key import pack_tokens
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc

PAUSE = 0.08
"""Mean pause between two requests, which come whether others are answered or not."""
MOST_UNDER_WAY = 300
GIVE_UP_SECONDS = 20.0
"""After this time a client leaves."""
TIMEOUT = 20.0
SHORTEST_SLOT, LONGEST_SLOT = 15.0, 60.0
FAULTY_SHARE = 0.8
NOTICED_SECONDS = 10.0
"""Time in which a fault must be noticed, or half the fault's if that is shorter."""
FEW, FEW_SHARE = 3, 0.03
"""Picks of an engine with a noticed fault that are next to none: so many, or this share of all."""


class GatewayTraffic:
    def __init__(
        self,
        stub: router_pb2_grpc.RouterStub,
        engines: Sequence[ServingEngine],
        *,
        minutes: float,
        seed: int,
        going_on: Callable[[], bool],
    ) -> None:
        self.failed: list[str] = []
        self.overloaded = 0
        """Calls that were refused for an overload, as docs/reference/failures.md says; gateways then go on alone."""
        self.figures: Counter[str] = Counter()
        self._stub = stub
        self._engines = {engine.pod: engine for engine in engines}
        self._going_on = going_on
        self._rng = Random(seed)
        self._slot = min(max(minutes * 60 / 8, SHORTEST_SLOT), LONGEST_SLOT)
        self._prefixes = [new_prompt(self._rng, 20)[:-1] for _ in range(12)]
        self._picks: list[tuple[float, str]] = []
        """The time and pod of each pick."""
        self._faulty_at: dict[str, float] = {}
        """When each engine last had a fault that holds requests up."""

    async def ask(self) -> None:
        """Send requests until the soak is over, and wait for those under way."""
        connector = aiohttp.TCPConnector(limit=0)
        wait = aiohttp.ClientTimeout(total=GIVE_UP_SECONDS)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=wait) as http,
            asyncio.TaskGroup() as tasks,
        ):
            under_way: set[asyncio.Task[None]] = set()
            while self._going_on():
                if len(under_way) < MOST_UNDER_WAY:
                    task = tasks.create_task(self._one(http))
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)
                await asyncio.sleep(self._rng.expovariate(1 / PAUSE))

    async def _one(self, http: aiohttp.ClientSession) -> None:
        prompt = new_prompt(self._rng, self._rng.randrange(3), self._rng.choice(self._prefixes))
        request = pb.PickRequest(
            prompt=pb.Prompt(model="served", token_ids_packed=pack_tokens(prompt))
        )
        try:
            picked = await self._stub.Pick(request, timeout=TIMEOUT)
        except grpc.aio.AioRpcError as error:
            self._no_pick(error)
            return
        first = picked.candidates[0]
        begun = time.monotonic()
        self._picks.append((begun, first.pod))
        if all(engine.fault in {None, Fault.LATE} for engine in self._engines.values()):
            self._note(first.ready, f"a pick found {first.pod} not ready, which serves")
        reports = [pb.ReportRequest(booking_id=picked.booking_id, event=pb.ReportRequest.FAILED)]
        try:
            async with http.post(
                f"http://{first.address}/v1/completions", json={"prompt": prompt}
            ) as answer:
                answer.raise_for_status()
                usage = (await answer.json())["usage"]
        except (aiohttp.ClientError, TimeoutError) as error:
            was_well = self._faulty_at.get(first.pod, 0.0) < begun and (
                self._engines[first.pod].fault in {None, Fault.LATE}
            )
            self._note(not was_well, f"a request to {first.pod}, which was well: {error!r:.200}")
            self.figures["requests that an engine's fault failed"] += was_well is False
        else:
            self.figures["requests"] += 1
            reports = [
                pb.ReportRequest(
                    booking_id=picked.booking_id, event=event, prompt_tokens=usage["prompt_tokens"],
                    cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
                )
                for event in (pb.ReportRequest.FIRST_TOKEN, pb.ReportRequest.FINISHED)
            ]  # fmt: skip
        for report in reports:
            try:
                await self._stub.Report(report, timeout=TIMEOUT)
            except grpc.aio.AioRpcError as error:
                self._no_pick(error)

    def _no_pick(self, error: grpc.aio.AioRpcError) -> None:
        failure = failure_of(error)
        if failure.reason == "OVERLOADED":
            self.overloaded += 1
        else:
            self.failed.append(
                f"gateway: {failure.code.name} {failure.reason}: {failure.message:.200}"
            )

    def _note(self, is_right: bool, problem: str) -> None:
        if not is_right:
            self.failed.append(f"gateway: {problem}")

    async def break_engines(self) -> None:
        """Give engines one fault after the other until the soak is over; leave the first one well."""
        ill = list(self._engines.values())[1:]
        number = 0
        while self._going_on():
            fault = list(Fault)[number % len(Fault)]
            engine = ill[number % len(ill)]
            number += 1
            # What makes a pod look ill is the worst where it befalls all.
            those = list(self._engines.values()) if fault is Fault.LATE else [engine]
            await asyncio.sleep((1 - FAULTY_SHARE) * self._slot)
            for one in those:
                await one.begin(fault)
            begun = time.monotonic()
            lasts = FAULTY_SHARE * self._slot
            end = begun + lasts
            while self._going_on() and time.monotonic() < end:
                if fault is not Fault.LATE:
                    self._faulty_at[engine.pod] = time.monotonic()
                await asyncio.sleep(0.1)
            noticed = begun + min(NOTICED_SECONDS, lasts / 2)
            if fault is not Fault.LATE:
                self._judge(engine.pod, fault, noticed)
                self._faulty_at[engine.pod] = time.monotonic()
            for one in those:
                await one.mend()
            self.figures[f"faults: {fault.value}"] += 1

    def _judge(self, pod: str, fault: Fault, noticed: float) -> None:
        """Note whether picks avoided an engine from `noticed` on."""
        picks = [picked for at, picked in self._picks if at >= noticed]
        theirs = picks.count(pod)
        self.figures[f"picks of engines that were {fault.value}, noticed"] += theirs
        self.figures["picks meanwhile"] += len(picks)
        most = max(FEW, FEW_SHARE * len(picks))
        self._note(
            theirs <= most, f"{theirs} of {len(picks)} picks took {pod}, {fault.value} for long"
        )
        self._picks.clear()
