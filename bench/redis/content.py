"""Made-up contents of a shared index: who holds which prompts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from bench.redis.layout import Changes
from indexer.keys.segment import SEGMENT


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt's keys, and how many leading blocks of it each pod holds."""

    keys: Sequence[int]
    held: dict[int, int]


class Content:
    """Prompts and their holders, and what that comes to."""

    def __init__(self, pods: int, prompts: Sequence[Prompt]) -> None:
        self.pods = pods
        self.prompts = prompts
        self._holds: list[set[int]] = [set() for _ in range(pods)]
        self._asked: list[tuple[int, Changes]] = []
        for prompt in prompts:
            for pod, depth in prompt.held.items():
                changes = changes_of(prompt.keys[:depth], self._holds[pod])
                if changes:
                    self._asked.append((pod, changes))
                self._holds[pod].update(prompt.keys[:depth])

    def changes(self) -> Iterator[tuple[int, Changes]]:
        """Yield what the pods come to hold, a prompt and pod at a time, none of it twice."""
        return iter(self._asked)

    def truth(self, keys: Sequence[int]) -> dict[int, int]:
        """Return how many leading blocks of a prompt each pod holds that holds the first."""
        found = {}
        for pod, holds in enumerate(self._holds):
            depth = next((at for at, key in enumerate(keys) if key not in holds), len(keys))
            if depth:
                found[pod] = depth
        return found

    @property
    def blocks(self) -> int:
        """Distinct blocks."""
        return len(set().union(*self._holds))

    @property
    def entries(self) -> int:
        """(block, pod) pairs."""
        return sum(map(len, self._holds))


def changes_of(keys: Sequence[int], known: frozenset[int] | set[int] = frozenset()) -> Changes:
    """Return a prompt's keys by segment, without those that are known."""
    found = {}
    for start in range(0, len(keys), SEGMENT):
        new = [key for key in keys[start : start + SEGMENT] if key not in known]
        if new:
            found[keys[start]] = new
    return found


def keys_of(rng: Random, blocks: int) -> list[int]:
    """Return made-up keys."""
    return [rng.getrandbits(64) | 1 for _ in range(blocks)]


def prompts_of(blocks: int, pods: int, count: int, *, share: float = 1.0, seed: int = 1) -> Content:
    """Return prompts that have nothing in common; all pods hold the same leading share of each."""
    rng = Random(seed)
    depth = int(blocks * share)
    held = dict.fromkeys(range(pods), depth) if depth else {}
    return Content(pods, [Prompt(keys_of(rng, blocks), held) for _ in range(count)])


SYSTEM = (50, 100, 200, 333)
"""Blocks of the fleet's system prompts: none ends where a segment does."""


def fleet_of(pods: int, sessions: int, *, seed: int = 2) -> Content:
    """Return chats under four system prompts: each goes on for 8 to 400 blocks, on one to three pods.

    Every pod that has a chat holds its system prompt; the segment in which the chats part holds blocks
    of them all.
    """
    rng = Random(seed)
    systems = [keys_of(rng, blocks) for blocks in SYSTEM]
    prompts = []
    for session in range(sessions):
        keys = systems[session % len(systems)] + keys_of(rng, int(8 * 50 ** rng.random()))
        holders = rng.sample(range(pods), rng.randint(1, 3))
        prompts.append(Prompt(keys, dict.fromkeys(holders, len(keys))))
    return Content(pods, prompts)
