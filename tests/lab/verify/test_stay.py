"""Misses of clients that ask at the same time: the moment at which the engine may have looked is named."""

import asyncio
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpath.lab.local.cluster import Process, Worker, WorkerSettings
from warmpath.lab.verify import command as verify
from warmpath.lab.verify.stay import LATE_SECONDS, Batch, EventKeys, Stay

KEYS = (11, 12, 13, 14)


def stay(*batches: Batch, held: int = 0, others: int = 3) -> Stay:
    return Stay(1.0, 2.0, KEYS, frozenset(KEYS[:held]), batches, 0, others)


def stored(*keys: int) -> EventKeys:
    return "stored", frozenset(keys)


def removed(*keys: int) -> EventKeys:
    return "removed", frozenset(keys)


def test_the_time_is_named_in_which_as_many_blocks_were_cached_as_the_engine_found() -> None:
    stayed = stay(Batch(1.25, 7, [stored(11, 12)]), Batch(1.5, 8, [removed(12, 99)]), held=1)
    assert stayed.account(0, 2) == (
        "3 other requests were under way; the engine looked the prompt up while 2 of its blocks were "
        "cached, from batch 7 (1.250 s) to batch 8 (1.500 s)"
    )
    assert "cached, from its arrival (1.000 s) to batch 7 (1.250 s)" in stay(
        Batch(1.25, 7, [stored(12)]), held=1
    ).account(2, 1)
    assert "cached, from batch 7 (1.250 s) to its answer (2.000 s)" in stay(
        Batch(1.25, 7, [stored(11, 12)])
    ).account(0, 2)


def test_a_step_may_evict_and_store_a_block_again_and_look_between_the_two() -> None:
    stayed = stay(Batch(1.5, 8, [removed(12, 13), stored(12, 13)]), held=4)
    assert stayed.account(4, 1).endswith(
        "while 1 of its blocks were cached, within batch 8 (1.500 s)"
    )


def test_events_of_a_step_may_come_after_its_answer_but_not_long_after() -> None:
    late = stay(Batch(3.5, 9, [stored(11)]), others=1)
    assert late.account(0, 1) == (
        "one other request was under way; the engine looked the prompt up while 1 of its blocks were "
        "cached, from batch 9 (3.500 s) on, whose events came after the answer"
    )
    later = stay(Batch(2.0 + 2 * LATE_SECONDS, 9, [stored(11)]))
    assert "not explained" in later.account(0, 1)


def test_where_no_moment_fits_it_is_said_when_each_block_was_cached() -> None:
    stayed = stay(
        Batch(1.25, 7, [stored(12, 13)]),
        Batch(1.5, 8, [removed(13)]),
        Batch(1.75, 9, [stored(11)]),
        held=0,
        others=0,
    )
    assert stayed.account(0, 4) == (
        "not explained: no other request was under way, and no event shows why; "
        "block 1 was cached from batch 9 (1.750 s) to its answer (2.000 s); "
        "block 2 was cached from batch 7 (1.250 s) to its answer (2.000 s); "
        "block 3 was cached from batch 7 (1.250 s) to batch 8 (1.500 s); block 4 was never cached"
    )


EVENT = st.one_of(
    st.tuples(st.sampled_from(["stored", "removed"]), st.frozensets(st.sampled_from(KEYS))),
    st.just(("cleared", frozenset[int]())),
)


@given(
    st.lists(st.tuples(st.floats(1.0, 4.0), st.lists(EVENT, max_size=4)), max_size=6),
    st.integers(0, 4),
    st.integers(0, 9),
    st.integers(0, 9),
)
def test_any_events_and_figures_give_a_reason(
    batches: list[tuple[float, Sequence[EventKeys]]], held: int, predicted: int, actual: int
) -> None:
    of = [Batch(t, number, said) for number, (t, said) in enumerate(sorted(batches))]
    found = stay(*of, held=held).account(predicted, actual)
    if actual == held:
        assert "from its arrival (1.000 s)" in found


async def test_every_miss_of_concurrent_clients_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "recording.jsonl.gz"
    worker = Worker("w", Process("worker", tmp_path / "log"))
    recorder = Process("recorder", tmp_path / "recorder.log")
    # So small a cache and so slow an engine that prompts wait, and evict each other's blocks.
    await worker.start(WorkerSettings(blocks=60, block_size=4, speed=100.0, vocab_size=2048))
    line = await recorder.start(
        "warmpath.cli", "record", f"--target=http://{worker.address}", f"--events={worker.events}",
        f"--replay={worker.replay}", "--listen=127.0.0.1:0", f"--out={out}",
    )  # fmt: skip
    base = line.split("to ")[1].split(",")[0]
    rng = Random(1)
    shared = [[rng.randrange(2000) for _ in range(40)] for _ in range(5)]

    async def client(http: aiohttp.ClientSession, number: int) -> None:
        own = Random(number)
        for _ in range(15):
            prompt = own.choice(shared)[: own.randrange(8, 41)]
            prompt += [own.randrange(2000) for _ in range(own.randrange(12))]
            body = {"model": "demo", "prompt": prompt, "max_tokens": own.randrange(1, 9)}
            async with http.post(f"{base}/v1/completions", json=body) as got:
                await got.read()

    async with aiohttp.ClientSession() as http:
        await asyncio.gather(*(client(http, number) for number in range(8)))
    await recorder.stop()
    await worker.process.stop()
    with gzip.open(out, "rt") as lines:
        assert sum(json.loads(line)["kind"] == "request" for line in lines) == 8 * 15
    assert verify.main([str(out), "--json"]) == 0
    outcome: dict[str, Any] = json.loads(capsys.readouterr().out)
    reasons = [miss["reason"] for miss in outcome["mismatches"]]
    assert any("other requests were under way" in reason for reason in reasons)
    assert not [reason for reason in reasons if "not explained" in reason]
