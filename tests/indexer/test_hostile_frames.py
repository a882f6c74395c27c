"""Whatever an engine publishes, the compiled form, the pure one and the reference show the same.

Names stand for one content now and another later, twice in one event, in several tiers and groups;
parents are unknown; batches are lost, repeated and damaged; ranks come, go, and are saved and restored.
"""

from collections.abc import Callable
from random import Random

import msgspec
import pytest

from tests.examples import examples
from tests.indexer.consistent import check
from tests.indexer.sides import CLEARED, FORMS, Event, Side, removed, stored
from warmpath.indexer.keys.key import Keyspace, chain, pack_tokens

SCRIPTS = examples(500)
"""Random scripts that are run; a failure names the seed of its script."""
RankKey = tuple[str, int, str]
"""Pod, number and engine."""
RANKS: list[RankKey] = [("a", 0, "vllm"), ("a", 1, "vllm"), ("b", 0, "vllm"), ("s", 0, "sglang")]
KEYS = [
    chain(Keyspace("m", 2).root(), pack_tokens([one, other] * 2), 2)[-1]
    for one in range(2)
    for other in range(2)
]
NAMES = [*range(8), *(n << 48 for n in range(1, 4)), (1 << 64) - 1, 1 << 63, *KEYS, b"", b"x" * 32]
MEDIA = ["GPU", "GPU", "GPU", "GPU", None, "CPU", "cpu", "DISK", "tape", "EXTERNAL"]
PROMPTS = [[n >> bit & 1 for bit in range(8)] for n in range(0, 256, 13)]


class Script:
    """A random history. Some are tame, so that most of it is plain; `twice` doubles names in events."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.sides = {form: Side(form) for form in FORMS}
        self.sizes = rng.choice([[2], [2], [2], [2, 4]])
        self.names = rng.sample(NAMES, rng.choice([3, 6, len(NAMES)]))
        self.oddities = rng.choice([[], [], ["salt"], ["lora", "salt", "image"], ["group"]])
        self.media = rng.choice([["GPU"], MEDIA])
        self.twice = rng.choice([0.0, 0.3])
        self.last: tuple[str, int, int, bytes] | None = None
        for pod, number, engine in RANKS:
            for side in self.sides.values():
                side.rank(pod, number, engine)

    def each(self, act: Callable[[Side], object]) -> None:
        for side in self.sides.values():
            act(side)

    def step(self) -> None:
        """Let one thing happen on every side."""
        rank = self.rng.choice(RANKS)
        pod, number, _ = rank
        if self.rng.random() < 0.85:
            payloads = []
            for _ in range(self.rng.choice([1, 1, 3])):
                events = [self.event(rank) for _ in range(self.rng.choice([1, 1, 2, 4]))]
                payloads.append(msgspec.msgpack.encode([0.5, events, number]))
            sequence = self.sides["pure"].sequence[pod, number] + len(payloads) - 1
            self.last = pod, number, sequence, payloads[-1]
            self.each(lambda side: side.frames(pod, payloads, number=number))
            return
        what = self.rng.choice([*MISHAPS, "tick", "tick"])
        amount = self.rng.randrange(12)
        if what == "tick":
            self.each(lambda side: side.ingest.tick(5 * amount))
        else:
            self.each(lambda side: MISHAPS[what](self, side, rank, amount))

    def event(self, rank: RankKey) -> Event:
        rng, engine = self.rng, rank[2]
        if rng.random() < 0.01:
            return CLEARED
        names = [rng.choice(self.names) for _ in range(rng.choice([1, 1, 2, 3, 5]))]
        if rng.random() >= self.twice:
            names = list(dict.fromkeys(names))
        medium = rng.choice(self.media)
        odd = rng.choice([*self.oddities, *[""] * 4]) if engine == "vllm" else ""
        group = {"group_idx": rng.randrange(2)} if odd == "group" else {}
        if rng.random() < 0.35:
            if rng.random() < self.twice:
                names += names
            return removed(names, medium, **group)
        size = rng.choice(self.sizes)
        tokens = [rng.randrange(2) for _ in range(size * len(names))]
        parent = rng.choice(self.names) if rng.random() < 0.6 else None
        rest = [None] * (len(names) - 1)
        more: dict[str, object] = {
            "lora": {"lora_name": "x", "lora_id": 1},
            "salt": {"extra_keys": [["salt"], *rest]},
            "image": {"extra_keys": [[["image", 1]], *rest]},
            "group": {
                **group,
                "kv_cache_spec_kind": rng.choice(["full_attention", "sliding_window"]),
                "kv_cache_spec_sliding_window": 5,
            },
        }.get(odd, {})
        if engine == "vllm" and rng.random() < 0.05:
            tokens = []
        event = stored(names, tokens, parent, size, medium=medium, **more)
        if engine == "sglang":
            del event["lora_name"]
            signed = [n - (1 << 64) if isinstance(n, int) and n >> 63 else n for n in names]
            event["block_hashes"] = signed
        return event

    def repeat(self, side: Side) -> None:
        if self.last:
            pod, number, sequence, payload = self.last
            side.rank(pod, number).live("", sequence, payload)

    def leave_and_come_back(self, side: Side, rank: RankKey) -> None:
        side.ingest.remove(*rank[:2])
        side.rank(*rank)

    def restart_the_router(self, side: Side, rank: RankKey, amount: int) -> None:
        saved = side.saved(*rank[:2])
        if amount % 2:
            saved = msgspec.structs.replace(saved, resolver=saved.resolver.one_by_one())
        side.restart(*rank, saved)


MISHAPS: dict[str, Callable[[Script, Side, RankKey, int], object]] = {
    "lose": lambda _, side, rank, __: side.lose(*rank[:2]),
    "damage": lambda _, side, rank, n: side.frames(rank[0], [bytes(range(n))], number=rank[1]),
    "repeat": lambda script, side, *_: script.repeat(side),
    "reconnect": lambda _, side, rank, __: side.doubt(*rank[:2]),
    "restart the engine": lambda _, side, rank, __: side.sequence.update({rank[:2]: 0}),
    "learn the capacity": lambda _, side, rank, n: side.rank(*rank).learn_capacity(n),
    "leave and come back": lambda script, side, rank, _: script.leave_and_come_back(side, rank),
    "restart the router": Script.restart_the_router,
}


@pytest.mark.random
@pytest.mark.parametrize("seed", range(SCRIPTS))
def test_all_forms_show_the_same(seed: int) -> None:
    script = Script(seed)
    for _ in range(script.rng.choice([10, 20, 40])):
        script.step()
        script.each(lambda side: check(side.ingest))
        shown = {form: seen(side) for form, side in script.sides.items()}
        assert shown["compiled"] == shown["reference"]
        assert shown["pure"] == shown["reference"]


def seen(side: Side) -> dict[object, object]:
    """Return all that may be asked of a side."""
    found: dict[object, object] = {}
    for pod, number, _ in RANKS:
        rank = side.rank(pod, number)
        found[pod, number] = (
            {spot: keys for spot, keys in rank.state.held().items() if keys},
            rank.save().resolver.one_by_one().keys,
            rank.trust.level,
            rank.trust.reason,
            rank.counts(),
            rank.layout.groups,
            {tier: blocks for tier, blocks in rank.blocks().items() if blocks},
        )
    for lora, salt in (("", ""), ("x", ""), ("", "salt")):
        for size in (2, 4):
            found[lora, salt, size] = [
                side.held(tokens, size, lora=lora, salt=salt) for tokens in PROMPTS
            ]
    found["entries"] = side.index.stats().entries
    return found
