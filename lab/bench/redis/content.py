"""Made-up contents of a shared index: prompts and the pods that hold them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from warmpath.indexer.keys.segment import SEGMENT
from warmpath.lab.bench.redis.layout import Changes


@dataclass(frozen=True, slots=True)
class HeldPrompt:
    """A prompt's keys, and the number of its leading blocks that each pod holds."""

    keys: Sequence[int]
    held: dict[int, int]


class Content:
    """Prompts and their holders."""

    def __init__(self, pods: int, prompts: Sequence[HeldPrompt]) -> None:
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
        """Yield (pod, its new keys of a prompt), prompt by prompt; a pod gets no key twice."""
        return iter(self._asked)

    def truth(self, keys: Sequence[int]) -> dict[int, int]:
        """Return the number of leading blocks of a prompt for each pod that holds the first."""
        found = {}
        for pod, holds in enumerate(self._holds):
            depth = next((at for at, key in enumerate(keys) if key not in holds), len(keys))
            if depth:
                found[pod] = depth
        return found

    @property
    def blocks(self) -> int:
        """Number of distinct blocks."""
        return len(set().union(*self._holds))

    @property
    def entries(self) -> int:
        """Number of (block, pod) pairs."""
        return sum(map(len, self._holds))


def changes_of(keys: Sequence[int], known: frozenset[int] | set[int] = frozenset()) -> Changes:
    """Return a prompt's keys by segment (its first key), without the known ones."""
    found = {}
    for start in range(0, len(keys), SEGMENT):
        new = [key for key in keys[start : start + SEGMENT] if key not in known]
        if new:
            found[keys[start]] = new
    return found


def keys_of(rng: Random, blocks: int) -> list[int]:
    """Return `blocks` made-up keys, 64 bits each."""
    return [rng.getrandbits(64) | 1 for _ in range(blocks)]


def prompts_of(blocks: int, pods: int, count: int, *, share: float = 1.0, seed: int = 1) -> Content:
    """Return prompts that share no block; all pods hold the same leading share of each."""
    rng = Random(seed)
    depth = int(blocks * share)
    held = dict.fromkeys(range(pods), depth) if depth else {}
    return Content(pods, [HeldPrompt(keys_of(rng, blocks), held) for _ in range(count)])


SYSTEM = (50, 100, 200, 333)
"""Blocks of the fleet's system prompts; none of them ends with a segment."""


def fleet_of(pods: int, sessions: int, *, seed: int = 2) -> Content:
    """Return chats with four system prompts: each goes on for 8 to 400 blocks, on one to three pods.

    Every pod of a chat holds its system prompt. Chats with one system prompt part within a
    segment, which has blocks of all of them.
    """
    rng = Random(seed)
    systems = [keys_of(rng, blocks) for blocks in SYSTEM]
    prompts = []
    for session in range(sessions):
        keys = systems[session % len(systems)] + keys_of(rng, int(8 * 50 ** rng.random()))
        holders = rng.sample(range(pods), rng.randint(1, 3))
        prompts.append(HeldPrompt(keys, dict.fromkeys(holders, len(keys))))
    return Content(pods, prompts)
