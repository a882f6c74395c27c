"""Answers to Dynamo's callers are those of Dynamo's own indexer and selection service."""

from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.examples import examples
from tests.router.pages.dynamo.stand import BLOCK, TIERS, Publisher, standing
from warmpath.lab.bench import peer

pytestmark = pytest.mark.skipif(
    not peer.is_installed(), reason="ai-dynamo-runtime is not installed (make bench installs it)"
)
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
