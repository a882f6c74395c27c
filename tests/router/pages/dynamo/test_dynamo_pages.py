"""Dynamo's pages on a running router: what is refused and why; the answers are those of Dynamo's own services."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest

from tests.examples import examples
from tests.router.pages.dynamo.stand import BLOCK, MODEL, TIERS, Publisher, Stand, standing
from tests.router.test_drain import LATE
from warmpath.lab.bench import peer

PATHS = ("query", "overlap_scores")
IDS = [*range(100, 108)]
NOTHING = {"scores": {}, "frequencies": [], "instances": {}}


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    async with standing(tmp_path) as stand:
        yield stand


async def refused(stand: Stand, path: str, body: Any, status: int = 400) -> str:
    """Return the error of a body that is refused with a status."""
    code, answer = await stand.ask("router", path, body)
    assert code == status, answer
    assert answer.keys() == {"error"}
    return str(answer["error"])


async def post(stand: Stand, body: bytes, **headers: str) -> tuple[int, dict[str, Any]]:
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{stand.urls['router']}/query", data=body, headers=headers) as response,
    ):
        return response.status, await response.json()


async def test_a_pods_id_names_its_instance_and_the_last_block_counts(stand: Stand) -> None:
    assert await stand.query("router", IDS) == NOTHING
    publisher = stand.publishers[1]
    publisher.publish(publisher.stored(IDS, 0, "GPU"))
    await stand.settled()
    answer = await stand.query("router", IDS)
    assert answer["scores"] == {"2": {"0": 8}}
    assert answer["instances"] == {
        "2": {"longest_matched": 8, "gpu": 8, "dp": {"0": 8}, "cpu": 8, "disk": 8}
    }
    assert await stand.query("router", IDS[:-1]) != answer


async def test_salts_and_adapters_are_apart(stand: Stand) -> None:
    publisher = stand.publishers[0]
    event = publisher.stored(IDS, 0, "GPU")
    publisher.publish([*event[:7], "tuned"])
    await stand.settled()
    assert await stand.query("router", IDS) == NOTHING
    assert await stand.query("router", IDS, cache_salt="a") == NOTHING
    assert (await stand.query("router", IDS, lora_name="tuned"))["scores"] == {"1": {"0": 8}}
    assert await stand.query("router", IDS, lora_name="tuned", cache_salt="a") == NOTHING
    empty = {"lora_name": "", "cache_salt": "", "tenant_id": "t", "routing_group": "default"}
    assert await stand.query("router", IDS, **empty) == NOTHING
    nulls = {"lora_name": None, "cache_salt": None, "block_hashes": None, "more": [1]}
    assert await stand.query("router", IDS, **nulls) == NOTHING


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"token_ids": None}, "token_ids: is missing"),
    ({"token_ids": None, "block_hashes": [1]}, "block_hashes: is not supported"),
    ({"token_ids": None, "sequence_hashes": [1]}, "sequence_hashes: is not supported"),
    ({"token_ids": []}, "token_ids: is empty"),
    ({"token_ids": "1"}, "token_ids: is not a list of integers"),
    ({"token_ids": [1.5]}, "token_ids: is not a list of integers"),
    ({"token_ids": [[1]]}, "token_ids: is not a list of integers"),
    ({"token_ids": [-1]}, "token_ids: a token id must be an unsigned 32-bit integer"),
    ({"token_ids": [1 << 32]}, "token_ids: a token id must be an unsigned 32-bit integer"),
    ({"model_name": 1}, "model_name: is not a string"),
    ({"model_name": ""}, "model_name: is missing"),
    ({"model_name": "m" * 1025}, "model_name: is longer than 1024 bytes"),
    ({"lora_name": ["a"]}, "lora_name: is not a string"),
    ({"lora_name": "m" * 1025}, "lora_name: is longer than 1024 bytes"),
    ({"cache_salt": "m" * 1025}, "cache_salt: is longer than 1024 bytes"),
    ({"routing_group": "a"}, "routing_group: is not 'default'"),
    ({"block_mm_infos": [None]}, "block_mm_infos: is not supported"),
    ({"mm_routing_info": {}}, "mm_routing_info: is not supported"),
]


@pytest.mark.parametrize("path", PATHS)
async def test_a_field_that_is_refused_is_named(stand: Stand, path: str) -> None:
    body = {"model_name": MODEL, "token_ids": IDS}
    for changes, error in REFUSED:
        assert (await refused(stand, path, body | changes)).startswith(error), changes


async def test_a_model_that_no_pod_serves_is_told_apart(stand: Stand) -> None:
    body = {"model_name": "no-such-model", "token_ids": IDS}
    for path in PATHS:
        error = await refused(stand, path, body, 404)
        assert error.startswith("model_name: no model is called 'no-such-model'")
    error = await refused(stand, "query", {"token_ids": IDS})
    assert error == "model_name: is missing"
    # The selection service has a name for a model that is not named.
    error = await refused(stand, "overlap_scores", {"token_ids": IDS}, 404)
    assert error.startswith("model_name: no model is called 'default'")
    error = await refused(stand, "query", {"model_name": "idle", "token_ids": IDS}, 503)
    assert error == "no pod serves the model 'idle'"


async def test_bodies_that_are_no_query_are_refused(stand: Stand) -> None:
    query = json.dumps({"model_name": MODEL, "token_ids": IDS}).encode()
    for body in (b"", b"{", b"[1]", b"[" * 10_000, query[:-1], query.decode().encode("utf-16")):
        status, answer = await post(stand, body)
        assert status == 400
        assert answer["error"].startswith("body: is not ")
    status, answer = await post(stand, b'{"model_name": "\\ud800", "token_ids": [1]}')
    assert (status, answer) == (
        400,
        {"error": "body: is not JSON: a string holds a lone surrogate"},
    )
    assert await post(stand, gzip.compress(query), **{"Content-Encoding": "gzip"}) == (200, NOTHING)
    status, answer = await post(stand, b"x" + query, **{"Content-Encoding": "gzip"})
    assert status == 400
    assert answer["error"].startswith("body: is not in its Content-Encoding")


async def test_bodies_beyond_the_limit_are_refused_whatever_they_say_of_their_length(
    stand: Stand,
) -> None:
    too_large = {"error": "the body has more than 200000 bytes (limits.max-prompt-bytes)"}
    assert await post(stand, b" " * 200_001) == (413, too_large)
    bomb = gzip.compress(b" " * (64 << 20))
    assert len(bomb) < 200_000
    assert await post(stand, bomb, **{"Content-Encoding": "gzip"}) == (413, too_large)
    host, _, port = stand.urls["router"].removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /query HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
    writer.write(b"30D41\r\n" + b" " * 200_001)
    assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
    writer.close()
    many = json.dumps({"model_name": MODEL, "token_ids": [1] * 5001}).encode()
    error = {"error": "token_ids: has 5001 tokens; limits.max-prompt-tokens is 5000"}
    assert await post(stand, many) == (400, error)


async def test_a_caller_that_leaves_in_the_middle_of_its_body_costs_nothing(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    host, _, port = stand.urls["router"].removeprefix("http://").partition(":")
    for _ in range(100):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b'POST /query HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"')
        await writer.drain()
        writer.close()
        await writer.wait_closed()
    assert await stand.query("router", IDS) == NOTHING
    while "warmpath_in_flight_bytes 0.0" not in await metrics(stand):
        await asyncio.sleep(0.01)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def metrics(stand: Stand) -> str:
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"{stand.urls['router']}/metrics") as response,
    ):
        return await response.text()


async def test_answers_are_counted_by_status(stand: Stand) -> None:
    await stand.query("router", IDS)
    await refused(stand, "overlap_scores", {})
    text = await metrics(stand)
    assert 'warmpath_requests_total{code="OK",method="query"}' in text
    counted = 'warmpath_requests_total{code="INVALID_ARGUMENT",method="overlap_scores"} 1.0'
    assert counted in text
    assert 'warmpath_refusals_total{method="overlap_scores",reason="BAD_REQUEST"} 1.0' in text


async def test_pods_whose_ids_are_no_numbers_have_no_overlap_scores(tmp_path: Path) -> None:
    for ids in (("pod-a", "2", "3"), ("1", "2", "03"), ("1", "2", "18446744073709551616")):
        async with standing(tmp_path, ids=ids) as stand:
            assert await stand.query("router", IDS) == NOTHING
            body = {"model_name": MODEL, "token_ids": IDS}
            error = await refused(stand, "overlap_scores", body)
            assert error.startswith("model_name: has the pod ")
            assert "0 to 18446744073709551615; use /query" in error


async def test_pods_may_differ_in_block_size_where_tokens_are_told(stand: Stand) -> None:
    large = [*range(200, 200 + 4 * BLOCK)]
    one, other, _ = stand.publishers
    one.publish(one.stored(large, 0, "GPU"))
    name = one.name([1])
    other.publish(
        ["AllBlocksCleared"], ["BlockStored", [name], None, large, 4 * BLOCK, None, "GPU"]
    )
    while True:
        whole = await stand.query("router", large)
        if whole["scores"].keys() == {"1", "2"}:
            break
        await asyncio.sleep(0.01)
    assert whole["scores"] == {"1": {"0": 4 * BLOCK}, "2": {"0": 4 * BLOCK}}
    answer = await stand.query("router", large[: 3 * BLOCK])
    assert answer["scores"] == {"1": {"0": 3 * BLOCK}}
    body = {"model_name": MODEL, "token_ids": large}
    error = await refused(stand, "overlap_scores", body)
    assert error == "model_name: has pods with blocks of different sizes; use /query"


@pytest.mark.deep
async def test_a_router_that_ends_answers_first_and_refuses_then(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        # On a busy machine a client may be silent for longer than a tenth of half a second.
        stand = await stack.enter_async_context(standing(tmp_path, drain_seconds=8))
        url = f"{stand.urls['router']}/query"
        body = {"model_name": MODEL, "token_ids": IDS}
        ending = asyncio.create_task(stack.pop_all().aclose())
        async with aiohttp.ClientSession() as http:
            while True:
                async with http.post(url, json=body) as response:
                    told = response.status, await response.json()
                if told[0] != 200:
                    break
        assert told == (503, {"error": LATE})
        await ending


ROUNDS = examples(100, desk=6)
STEPS = 40


class Cache:
    """The blocks of one engine, by tier; what it stores and removes is published."""

    def __init__(self, publisher: Publisher, rng: Random) -> None:
        self._publisher = publisher
        self._rng = rng
        self._held: dict[str, set[tuple[int, ...]]] = {tier: set() for tier in TIERS}

    def step(self, prompt: tuple[int, ...]) -> None:
        """Store a prompt's blocks in a tier, or remove a leaf.

        A block is announced once, and a GPU holds the parent of each of its own: Dynamo's index counts
        on both.
        """
        tier = self._rng.choice(TIERS)
        held = self._held[tier]
        if held and self._rng.random() < 0.3:
            gone = self._rng.choice(sorted(held))
            if not any(other[: len(gone)] == gone and other != gone for other in held):
                held.remove(gone)
                self._publisher.publish(self._publisher.removed(gone, tier))
            return
        known = held if tier == "GPU" else set().union(*self._held.values())
        ends = range(BLOCK, len(prompt) + 1, BLOCK)
        blocks = [prompt[:end] for end in ends]
        begins = 0
        while begins < len(blocks) and blocks[begins] in held:
            begins += 1
        while begins < len(blocks) and blocks[begins] in known and self._rng.random() < 0.5:
            begins += 1
        stop = begins
        while stop < len(blocks) and blocks[stop] not in held:
            stop += 1
        if stop > begins:
            held.update(blocks[begins:stop])
            self._publisher.publish(self._publisher.stored(blocks[stop - 1], begins, tier))


@pytest.mark.skipif(
    not peer.is_installed(), reason="ai-dynamo-runtime is not installed (make bench installs it)"
)
async def test_queries_are_answered_as_by_dynamo(tmp_path: Path) -> None:
    rng = Random(1)
    async with standing(tmp_path, peers=True) as stand:
        seen: set[str] = set()
        for number in range(ROUNDS):
            caches = [Cache(publisher, rng) for publisher in stand.publishers]
            # Each round has prompts of its own, so the caches of earlier rounds do not matter.
            base = (number + 1) * 100
            prompts = [
                tuple(base + part * 10 + rng.randrange(2) for part in range(24)) for _ in range(3)
            ]
            for _ in range(STEPS):
                rng.choice(caches).step(rng.choice(prompts)[: BLOCK * rng.randrange(1, 7)])
            await stand.settled()
            for prompt in prompts:
                for length in (len(prompt), len(prompt) - 1, BLOCK):
                    tokens = prompt[:length]
                    ours = await stand.query("router", tokens)
                    assert ours == await stand.query("indexer", tokens), tokens
                    body: dict[str, Any] = {"model_name": "m", "token_ids": [*tokens]}
                    theirs = await stand.ask("selector", "overlap_scores", body)
                    assert await stand.ask("router", "overlap_scores", body) == theirs
                    seen.update(_kinds(ours))
        assert seen == {"gpu", "cpu beyond", "disk beyond", "cpu alone"}


def _kinds(answer: Any) -> set[str]:
    found = set()
    for one in answer["instances"].values():
        found |= {name for name, holds in (
            ("gpu", one["gpu"]), ("cpu beyond", one["cpu"] > one["gpu"] > 0),
            ("disk beyond", one["disk"] > one["cpu"] > 0), ("cpu alone", one["cpu"] and not one["gpu"]),
        ) if holds}  # fmt: skip
    return found
