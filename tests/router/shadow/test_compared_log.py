"""Another gateway's access log, in which two simulated engines take turns: the figure that comes out of it."""

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.lab.simworker.local_worker import LocalWorker
from tests.router.pages.stand import events
from tests.router.pick_stand import pod
from tests.router.running_router import metrics_of, running_router
from tests.waiting import until
from warmpath.lab.local.cluster import WorkerSettings
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc
from warmpath.router.assemble.means import ShadowMode

SETTINGS = WorkerSettings(blocks=200, block_size=16, speed=1000.0, vocab_size=2048)
MODEL = '[[models]]\nname = "demo"\n'
IDS = list(range(100, 300))
"""12 whole blocks of 16, or 3 of the 64 that are assumed without events."""
CACHED = 192


class TurnTaking:
    """A gateway that lets engines take turns, and logs as nginx does."""

    def __init__(
        self, log: Path, workers: list[LocalWorker], stub: router_pb2_grpc.RouterStub, address: str
    ) -> None:
        self.log = log
        self.address = address
        """The router's HTTP."""
        self.stub = stub
        self.cached = 0
        """Tokens that the engines found cached."""
        self._turns = cycle(workers)

    def write(self, line: str) -> None:
        with self.log.open("a") as file:
            file.write(f"{line}\n")

    async def send(self, **changes: Any) -> None:
        worker, begun = next(self._turns), time.monotonic()
        body = {"model": "demo", "prompt": IDS, "max_tokens": 2}
        status, answer = await worker.post("/v1/completions", body)
        self.cached += answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        line = {
            "timestamp": time.time(), "request_time": time.monotonic() - begun, "status": status,
            "request_body": json.dumps(body), "upstream": worker.address, **changes,
        }  # fmt: skip
        self.write(json.dumps(line))

    async def lines(self) -> dict[str, int]:
        """Return how many lines were taken, by outcome."""
        name = 'warmpath_shadow_log_lines_total{outcome="'
        of_all = await metrics_of(self.address)
        return {
            key.removeprefix(name).rstrip('"}'): int(value)
            for key, value in of_all.items()
            if key.startswith(name) and value
        }

    async def until_lines(self, **lines: int) -> None:
        async def are_taken() -> bool:
            return await self.lines() == lines

        await until(are_taken)

    async def until_held(self, pods: int) -> None:
        """Wait until events have shown the prompt on so many pods."""

        async def are_held() -> bool:
            listed = await self.stub.ListPods(pb.ListPodsRequest(), timeout=30)
            held = [sum(tier.blocks for tier in one.ranks[0].tiers) >= 12 for one in listed.pods]
            return sum(held) >= pods

        await until(are_held)

    async def shadow(self) -> Any:
        """Return what the live page shows of the comparison."""
        async with (
            aiohttp.ClientSession(f"http://{self.address}") as http,
            http.get("/api/v1/live") as response,
        ):
            async for name, data in events(response):
                if name == "snapshot":
                    return data["shadow"]
        raise AssertionError("the stream has ended")


@asynccontextmanager
async def taking_turns(folder: Path, *, has_events: bool) -> AsyncIterator[TurnTaking]:
    log = folder / "access.log"
    async with (
        LocalWorker.of(SETTINGS) as one,
        LocalWorker.of(SETTINGS) as two,
        running_router(
            folder,
            MODEL
            + "".join(
                pod(
                    f"pod-{number}", worker.address,
                    **({"events": worker.events, "replay": worker.replay} if has_events else {}),
                )
                for number, worker in enumerate((one, two), 1)
            ),
            shadow=ShadowMode(log),
        ) as (router, channel),
    ):  # fmt: skip
        stub = router_pb2_grpc.RouterStub(channel)

        async def is_ready() -> bool:
            listed = await stub.ListPods(pb.ListPodsRequest(), timeout=30)
            level = pb.Trust.EXACT if has_events else pb.Trust.COLD
            levels = {rank.trust.level for one in listed.pods for rank in one.ranks}
            return (
                len(listed.pods) == 2
                and all(one.ready for one in listed.pods)
                and levels == {level}
            )

        await until(is_ready)
        yield TurnTaking(log, [one, two], stub, router.http_address)


@pytest.mark.parametrize("has_events", [True, False], ids=["exact", "approximate"])
async def test_a_prompt_that_went_in_turns_was_once_computed_in_vain(
    tmp_path: Path, has_events: bool
) -> None:
    async with taking_turns(tmp_path, has_events=has_events) as gateway:
        for number in range(1, 5):
            await gateway.send()
            if has_events:
                await gateway.until_held(min(number, 2))
            else:
                await gateway.until_lines(compared=number)
        await gateway.until_lines(compared=4)
        shadow = await gateway.shadow()
        [model] = shadow["models"]
        # Only the second request went to a pod without its prompt while the other pod had it.
        assert (model["requests"], model["better"], model["worse"]) == (4, 1, 0)
        assert (model["better_tokens"], model["better_prompt_tokens"]) == (CACHED, len(IDS))
        assert (model["chosen_tokens"], model["warmpath_tokens"]) == (2 * CACHED, 3 * CACHED)
        assert model["chosen_tokens"] == gateway.cached
        assert model["exact"] == (4 if has_events else 0)
        assert model["saved_p90"] > 0
        metrics = await metrics_of(gateway.address)
        assert metrics['warmpath_shadow_better_requests_total{model="demo"}'] == 1
        assert metrics['warmpath_shadow_saved_seconds{model="demo",quantile="0.9"}'] > 0
        assert metrics["warmpath_bookings"] == 0


async def test_a_log_that_rotates_with_bad_lines_in_it_is_compared_whole(tmp_path: Path) -> None:
    async with taking_turns(tmp_path, has_events=True) as gateway:

        async def until_told(problem: str) -> None:
            async def is_told() -> bool:
                return problem in (await gateway.shadow())["log"]["problem"]

            await until(is_told)

        gateway.write("secret")
        await gateway.send()
        await gateway.until_lines(bad=1, compared=1)
        await until_told("the line at byte 0: is no JSON object")
        gateway.log.rename(tmp_path / "access.log.1")
        await gateway.send(upstream="10.9.9.9:80")
        await gateway.send(upstream="-")
        await gateway.send()
        await gateway.until_lines(bad=1, compared=2, elsewhere=1, unsent=1)
        gateway.log.write_text("")
        await gateway.until_lines(bad=1, compared=2, elsewhere=1, unsent=1)
        await until_told("the line at byte 0: upstream is 10.9.9.9:80, the address of no pod")
        await gateway.send(status=500)
        await gateway.send(timestamp=time.time() + 60)
        await gateway.until_lines(bad=2, compared=2, elsewhere=1, unsent=1, failed=1)
        await until_told(": timestamp is")
