"""Workers as processes: many in one, what a crash leaves, and how they end."""

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any, Self

import aiohttp
import pytest

from tests.lab.simworker.local_worker import IDS, SMALL
from warmpath.lab.local.ports import HeldPorts


class Spawned:
    """`python -m warmpath.lab.simworker`, or another program that takes its options; stopped by its own id."""

    def __init__(
        self, *options: str, program: tuple[str, str] = ("-m", "warmpath.lab.simworker")
    ) -> None:
        self._options = options
        self._program = program

    async def __aenter__(self) -> Self:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, *self._program, *SMALL, *self._options,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        self.ready = json.loads(line) if line else {}
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.communicate()

    async def ended(self) -> tuple[int, str]:
        """Wait for its end; return its status and what it complained of."""
        _, errors = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, errors.decode()

    async def terminated(self) -> tuple[int, str]:
        self.process.send_signal(signal.SIGTERM)
        return await self.ended()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def post(http: aiohttp.ClientSession, address: str, path: str, body: Any) -> Any:
    async with http.post(f"http://{address}{path}", json=body) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def cached(http: aiohttp.ClientSession, address: str) -> int:
    answer = await post(http, address, "/v1/completions", {"prompt": IDS, "max_tokens": 2})
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


async def asked_until_refused(http: aiohttp.ClientSession, address: str) -> None:
    """Ask again while the listener is still open, a moment longer than the connections."""
    while True:
        try:
            await cached(http, address)
        except aiohttp.ClientConnectorError:
            return
        except aiohttp.ClientError:
            continue


async def under_way(http: aiohttp.ClientSession, address: str) -> "asyncio.Task[Any]":
    """Ask for something that is under way when this returns."""
    body = {"prompt": IDS, "max_tokens": 100}
    asked = asyncio.create_task(post(http, address, "/v1/completions", body))
    in_flight = 0
    while not in_flight:
        async with http.get(f"http://{address}/load") as response:
            in_flight = (await response.json())["server_load"]
    return asked


async def test_many_workers_in_a_process_have_caches_of_their_own_and_end_together(
    http: aiohttp.ClientSession,
) -> None:
    async with Spawned("--workers=3", "--topic=kv@pod-{worker}@demo") as spawned:
        workers = spawned.ready["workers"]
        assert [sorted(worker) for worker in workers] == [["address", "events", "replay"]] * 3
        assert [await cached(http, worker["address"]) for worker in workers] == [0, 0, 0]
        assert await cached(http, workers[1]["address"]) == 16
        async with http.get(f"http://{workers[2]['address']}/kv_event_sources") as response:
            assert (await response.json())["0"]["topic"] == "kv@pod-2@demo"
        assert await spawned.terminated() == (0, "")


async def test_ports_are_counted_up_with_room_for_the_ranks(held_ports: HeldPorts) -> None:
    first, events, replay = held_ports.take(1), held_ports.take(1, 2, 3), held_ports.take(1, 2, 3)
    options = (
        "--workers=2", "--data-parallel-size=2", f"--listen=127.0.0.1:{first}",
        f"--events-endpoint=tcp://127.0.0.1:{events}", f"--replay-endpoint=tcp://127.0.0.1:{replay}",
    )  # fmt: skip
    async with Spawned(*options) as spawned:
        one, two = spawned.ready["workers"]
        assert (one["address"], two["address"]) == (f"127.0.0.1:{first}", f"127.0.0.1:{first + 1}")
        told = [rank for worker in (one, two) for rank in worker["ranks"]]
        assert [rank["events"] for rank in told] == [
            f"tcp://127.0.0.1:{events + offset}" for offset in range(4)
        ]
        assert [rank["replay"] for rank in told] == [
            f"tcp://127.0.0.1:{replay + offset}" for offset in range(4)
        ]
        assert two["events"] == told[2]["events"]


async def test_a_worker_that_crashes_takes_its_process_with_it(http: aiohttp.ClientSession) -> None:
    async with Spawned("--allow-faults") as spawned:
        with pytest.raises(aiohttp.ClientError):
            await post(http, spawned.ready["address"], "/faults", {"crash": True})
        assert await spawned.ended() == (139, "")


async def test_a_worker_that_crashes_among_others_leaves_them_alone(
    http: aiohttp.ClientSession,
) -> None:
    async with Spawned("--allow-faults", "--workers=2") as spawned:
        crashing, other = (worker["address"] for worker in spawned.ready["workers"])
        await cached(http, other)
        with pytest.raises(aiohttp.ClientError):
            await post(http, crashing, "/faults", {"crash": True})
        await asked_until_refused(http, crashing)
        assert await cached(http, other) == 16
        assert await spawned.terminated() == (0, "")


async def test_a_process_whose_workers_have_all_crashed_ends() -> None:
    async with Spawned("--workers=2", "--fault-crash-after=0.01") as spawned:
        status, _ = await spawned.ended()
        assert status == 1


async def test_sigterm_lets_what_runs_end_in_time(http: aiohttp.ClientSession) -> None:
    # Slow, so that on a busy machine too the health is asked for before the request has ended.
    async with Spawned("--speed=2", "--drain-seconds=60") as spawned:
        address = spawned.ready["address"]
        asked = await under_way(http, address)
        spawned.process.send_signal(signal.SIGTERM)
        health = 200
        while health != 503:
            async with http.get(f"http://{address}/health") as response:
                health = response.status
        assert (await asked)["usage"]["completion_tokens"] == 100
        assert await spawned.ended() == (0, "")


async def test_sigterm_waits_no_longer_than_it_may(http: aiohttp.ClientSession) -> None:
    async with Spawned("--speed=0.001", "--drain-seconds=0.05") as spawned:
        asked = await under_way(http, spawned.ready["address"])
        status, errors = await spawned.terminated()
        assert (status, errors) == (0, "")
        with pytest.raises(aiohttp.ClientError):
            await asked


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        # A file that cannot be used is a mistake of the call, as in every command.
        (("--tokenizer=/nowhere",), 2, "/nowhere"),
        (("--engine=trtllm", "--max-num-batched-tokens=2"), 1, "max_num_tokens"),
        (("--no-enable-chunked-prefill", "--max-model-len=9000", "--blocks=3000"), 1, "max_num_batched_tokens"),
    ],
)  # fmt: skip
async def test_what_an_engine_cannot_have_is_named_and_ends_the_process(
    options: tuple[str, ...], status: int, message: str
) -> None:
    async with Spawned(*options) as spawned:
        ended, errors = await spawned.ended()
        assert ended == status
        assert message in errors
        assert "Traceback" not in errors


FAILING = """
import sys
from warmpath.lab.simworker.__main__ import main
from warmpath.lab.simworker.v1.engine import V1Engine

def begin_step(self, horizon=0.0):
    raise RuntimeError("no room on the CPU")

V1Engine.begin_step = begin_step
sys.exit(main(sys.argv[1:]))
"""


async def test_an_engine_that_fails_ends_the_process_and_says_why(
    http: aiohttp.ClientSession,
) -> None:
    program = ("-c", FAILING)
    async with Spawned("--workers=2", program=program) as spawned:
        with pytest.raises(aiohttp.ClientError):
            await cached(http, spawned.ready["workers"][1]["address"])
        status, errors = await spawned.ended()
        assert status == 1
        last = errors.splitlines()[-1]
        assert last == "warmpath simworker: the engine of rank 0 failed: no room on the CPU"


async def test_clients_that_are_cut_off_leave_no_complaint(http: aiohttp.ClientSession) -> None:
    async with Spawned("--allow-faults") as spawned:
        address = spawned.ready["address"]

        async def asked() -> None:
            body = {"prompt": IDS, "max_tokens": 5, "stream": True}
            with contextlib.suppress(aiohttp.ClientError):
                async with http.post(f"http://{address}/v1/completions", json=body) as response:
                    await response.read()

        for _ in range(10):
            await asyncio.gather(
                *(asked() for _ in range(20)), post(http, address, "/faults", {"restart": True})
            )
        assert await spawned.terminated() == (0, "")
