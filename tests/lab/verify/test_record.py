"""`warmpath record` beside a real worker: what it writes, `warmpath verify` reads."""

import asyncio
import gzip
import json
import re
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from warmpath.cli.child import Process
from warmpath.lab.local.cluster import Worker, WorkerSettings
from warmpath.lab.local.ports import HeldPorts
from warmpath.lab.record import command as record
from warmpath.lab.verify import command as verify

SETTINGS = WorkerSettings(blocks=60, block_size=4, speed=1000.0, vocab_size=2048)


def lines_of(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt") as lines:
        return [json.loads(line) for line in lines]


async def ask(http: aiohttp.ClientSession, base: str, body: dict[str, Any]) -> bytes:
    path = "chat/completions" if "messages" in body else "completions"
    async with http.post(
        f"{base}/v1/{path}", json={"model": "demo", "max_tokens": 5} | body
    ) as got:
        return await got.read()


@asynccontextmanager
async def recorder(worker: Worker, out: Path, *options: str) -> AsyncIterator[str]:
    """Record what the worker does; yields the recorder's address."""
    process = Process("recorder", out.parent / "recorder.log")
    line = await process.start(
        "warmpath.cli", "record", f"--target=http://{worker.address}",
        f"--events={worker.events}", "--listen=127.0.0.1:0", f"--out={out}", *options,
    )  # fmt: skip
    yield line.split("to ")[1].split(",")[0]
    assert await process.stop() == 0


async def test_a_recording_of_a_running_engine_verifies_exactly(
    tmp_path: Path, model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "recording.jsonl.gz"
    worker = Worker("w", Process("worker", tmp_path / "log"))
    await worker.start(SETTINGS, f"--tokenizer={model_folder}", "--adapter=tuned")
    async with aiohttp.ClientSession() as http:
        # What the engine held before is known by replay.
        await ask(http, f"http://{worker.address}", {"prompt": list(range(20, 50))})
        bodies: list[dict[str, Any]] = [
            {"prompt": list(range(20, 60))},
            {"prompt": "some text to complete"},
            {"prompt": "some text to complete", "stream": True},
            {"messages": [{"role": "user", "content": "hello there, engine"}]},
            {"messages": [{"role": "user", "content": "hello there, engine"}], "stream": True},
            {"prompt": list(range(20, 60)), "model": "tuned"},
            {"prompt": list(range(20, 60)), "model": "tuned", "cache_salt": "s"},
            {"prompt": [1], "model": "not served"},
            *({"prompt": list(range(start, start + 90))} for start in range(100, 1000, 100)),
            {"prompt": list(range(20, 60))},
        ]
        direct = await ask(http, f"http://{worker.address}", bodies[1])
        async with recorder(worker, out, f"--replay={worker.replay}") as base:
            for body in bodies:
                answer = await ask(http, base, body)
                if body is bodies[1]:
                    mine, theirs = json.loads(answer), json.loads(direct)
                    assert mine["choices"][0]["text"] == theirs["choices"][0]["text"]
            async with http.post(f"{base}/reset_prefix_cache") as response:
                assert (await response.json())["success"]
            async with http.get(f"{base}/health") as response:
                assert response.status == 200
    assert await worker.process.stop() == 0
    recorded = lines_of(out)
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    kinds = [line["kind"] for line in recorded]
    assert kinds[:3] == ["trace", "replayed", "replayed"]
    assert recorded[0]["num_gpu_blocks"] == SETTINGS.blocks
    assert kinds.count("request") == len(bodies)
    assert "admin" in kinds
    assert verify.main([str(out), "--json"]) == 0
    outcome = json.loads(capsys.readouterr().out)
    assert outcome["requests"] == len(bodies) - 1
    # A busy recorder may read an answer before the events that the engine sent before it.
    late = re.compile("looked the prompt up while|no event shows why")
    early = [miss for miss in outcome["mismatches"] if late.search(miss["reason"])]
    assert outcome["exact"] + len(early) == outcome["requests"], outcome["mismatches"]
    assert len(early) <= 2, outcome["mismatches"]
    assert outcome["trust"] == "exact"
    assert outcome["overclaimed"] == 0


async def test_an_engine_that_is_gone_is_told_to_the_client(
    tmp_path: Path, held_ports: HeldPorts
) -> None:
    worker = Worker.held("w", tmp_path / "log", held_ports)
    await worker.start(SETTINGS)
    async with recorder(worker, tmp_path / "out.jsonl.gz") as base:
        await worker.process.stop()
        async with aiohttp.ClientSession() as http, http.get(f"{base}/health") as response:
            assert response.status == 502


async def test_an_answer_that_an_engine_breaks_off_is_broken_off_for_the_client(
    tmp_path: Path,
) -> None:
    async def half(request: web.Request) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse(headers={"content-length": "100"})
        await response.prepare(request)
        await response.write(b"half")
        assert request.transport
        request.transport.close()
        return response

    engine = web.Application()
    engine.router.add_post("/v1/completions", half)
    file = record.RecordingFile(tmp_path / "out.jsonl.gz")
    async with TestServer(engine) as server, aiohttp.ClientSession() as http:
        proxy = record.Proxy(str(server.make_url("/")), file, http)
        async with TestServer(proxy.app()) as front:
            url = front.make_url("/v1/completions")
            async with http.post(url, json={"model": "m", "prompt": [1]}) as answer:
                assert answer.status == 200
                with pytest.raises(aiohttp.ClientPayloadError):
                    await answer.read()
    file.close()
    [line] = lines_of(tmp_path / "out.jsonl.gz")
    assert (line["kind"], line["status"]) == ("request", 502)


def test_a_file_that_is_there_is_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "precious"
    out.write_text("precious")
    options = ["--target=http://x", "--events=tcp://x:1", f"--out={out}"]
    assert record.main(options) == 2
    assert "precious" in capsys.readouterr().err
    assert out.read_text() == "precious"


@pytest.mark.parametrize(
    "option",
    [
        "--listen=nowhere",
        "--listen=:8199",
        "--listen=127.0.0.1:\N{SUPERSCRIPT TWO}",
        "--target=ftp://x",
        "--events=tcp://*:5557",
        "--events=x:1",
        "--replay=tcp://*:1",
    ],
)
def test_bad_options_are_named(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    options = ["--target=http://x", "--events=tcp://x:1", f"--out={out}", option]
    assert record.main(options) == 2
    assert option.split("=", maxsplit=1)[0] in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.deep
async def test_an_engine_that_publishes_nothing_is_named_and_no_file_is_left(
    tmp_path: Path,
    held_port: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    worker = Worker("w", Process("worker", tmp_path / "log"))
    await worker.start(SETTINGS)
    out = tmp_path / "out.jsonl.gz"
    target = f"--target=http://{worker.address}"
    silent = f"tcp://127.0.0.1:{held_port}"
    for seconds, options, named in (
        (0.2, [f"--events={silent}"], "--events: nobody publishes"),
        # The events have to connect in that time, on a busy machine too.
        (5.0, [f"--events={worker.events}", f"--replay={silent}"], "--replay: no answer"),
    ):
        monkeypatch.setattr(record, "START_SECONDS", seconds)
        command = [target, *options, f"--out={out}", "--listen=127.0.0.1:0"]
        assert await asyncio.to_thread(record_in_a_loop, command) == 1
        assert named in capsys.readouterr().err
        assert not out.exists()
    await worker.process.stop()


def record_in_a_loop(command: list[str]) -> int:
    """Record off the main thread, where no signal handlers can be set."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.SelectorEventLoop, "add_signal_handler", lambda *_: None)
        return record.main(command)


async def test_an_error_while_events_are_recorded_is_said_and_the_file_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(record, "_listen", full)
    worker = Worker("w", Process("worker", tmp_path / "log"))
    await worker.start(SETTINGS)
    out = tmp_path / "out.jsonl.gz"
    command = [f"--target=http://{worker.address}", f"--events={worker.events}", f"--out={out}"]
    assert await asyncio.to_thread(record_in_a_loop, [*command, "--listen=127.0.0.1:0"]) == 1
    assert "no space left on device" in capsys.readouterr().err
    assert out.exists()
    await worker.process.stop()


async def test_it_can_be_ended_while_it_waits_for_the_engine(
    tmp_path: Path, held_port: int
) -> None:
    worker = Worker("w", Process("worker", tmp_path / "log"))
    await worker.start(SETTINGS)
    out = tmp_path / "out.jsonl.gz"
    waiting = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "warmpath.cli", "record", f"--target=http://{worker.address}",
        f"--events=tcp://127.0.0.1:{held_port}", f"--out={out}",
    )  # fmt: skip
    while not out.exists():
        await asyncio.sleep(0.01)
    waiting.terminate()
    await waiting.wait()
    assert waiting.returncode is not None
    await worker.process.stop()


async def test_every_miss_of_concurrent_clients_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "recording.jsonl.gz"
    worker = Worker("w", Process("worker", tmp_path / "log"))
    # So small a cache and so slow an engine that prompts wait, and evict each other's blocks.
    await worker.start(WorkerSettings(blocks=60, block_size=4, speed=100.0, vocab_size=2048))
    rng = Random(1)
    shared = [[rng.randrange(2000) for _ in range(40)] for _ in range(5)]

    async def client(http: aiohttp.ClientSession, base: str, number: int) -> None:
        own = Random(number)
        for _ in range(15):
            prompt = own.choice(shared)[: own.randrange(8, 41)]
            prompt += [own.randrange(2000) for _ in range(own.randrange(12))]
            await ask(http, base, {"prompt": prompt, "max_tokens": own.randrange(1, 9)})

    async with (
        recorder(worker, out, f"--replay={worker.replay}") as base,
        aiohttp.ClientSession() as http,
    ):
        await asyncio.gather(*(client(http, base, number) for number in range(8)))
    await worker.process.stop()
    assert sum(line["kind"] == "request" for line in lines_of(out)) == 8 * 15
    assert verify.main([str(out), "--json"]) == 0
    outcome: dict[str, Any] = json.loads(capsys.readouterr().out)
    reasons = [miss["reason"] for miss in outcome["mismatches"]]
    assert any("other requests were under way" in reason for reason in reasons)
    assert not [reason for reason in reasons if "not explained" in reason]
