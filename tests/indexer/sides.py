"""The kinds of embedded index side by side: each gets the same frames, and shows its content."""

from collections.abc import Callable, Iterable

import msgspec

from tests.conformance.reference_index import ReferenceIndex
from tests.indexer.followed import new_ingest, source
from tests.indexer.memory_index import MemoryIndex
from warmpath.indexer.compiled.array_index import ArrayIndex
from warmpath.indexer.engines import sglang, vllm
from warmpath.indexer.follow.stream_source import RankIngest, SavedRank
from warmpath.indexer.index.contract import Index
from warmpath.indexer.index.slot import RankName
from warmpath.indexer.keys.key import Chain, Keyspace, pack_tokens

FORMS: dict[str, Callable[[], Index]] = {
    "compiled": ArrayIndex,
    "pure": MemoryIndex,
    "reference": ReferenceIndex,
}
CODECS = {"vllm": vllm.decode, "sglang": sglang.decode}

Event = dict[str, object]


def stored(
    names: Iterable[object], tokens: Iterable[int], parent: object, size: int, **more: object
) -> Event:
    """Return a BlockStored event as vLLM writes it."""
    return {
        "type": "BlockStored", "block_hashes": list(names), "parent_block_hash": parent,
        "token_ids": list(tokens), "block_size": size, "lora_id": None, "medium": "GPU",
        "lora_name": None,
    } | more  # fmt: skip


def removed(names: Iterable[object], medium: str = "GPU", **more: object) -> Event:
    """Return a BlockRemoved event."""
    return {"type": "BlockRemoved", "block_hashes": list(names), "medium": medium} | more


CLEARED: Event = {"type": "AllBlocksCleared"}


class Side:
    """Ranks that are followed into one index; `form` is a key of `FORMS`, `capacity` that of each rank."""

    def __init__(self, form: str, index: Index | None = None, *, capacity: int = 0) -> None:
        self.now = 0.0
        self.index = FORMS[form]() if index is None else index
        self.ingest = new_ingest(
            lambda: self.index, pending_bytes=1 << 24, stale_after=60.0, clock=lambda: self.now
        )
        self.capacity = capacity
        self.sequence: dict[RankName, int] = {}

    def rank(self, pod: str, number: int = 0, engine: str = "vllm") -> RankIngest:
        """Return a rank's ingestion; an unknown rank is begun, without a replay."""
        found = self.ingest.rank(pod, number)
        if found is None:
            found = self._begin(pod, number, engine)
            found.connected()
        assert isinstance(found, RankIngest)
        return found

    def restore(
        self, pod: str, saved: SavedRank, number: int = 0, engine: str = "vllm"
    ) -> RankIngest:
        """Begin a rank with the state that another process saved."""
        rank = self._begin(pod, number, engine)
        rank.restore(saved)
        rank.connected()
        return rank

    def saved(self, pod: str, number: int = 0) -> SavedRank:
        """Return what another process reads of a rank that this one has saved."""
        raw = msgspec.msgpack.encode(self.rank(pod, number).save())
        return msgspec.msgpack.decode(raw, type=SavedRank)

    def restart(
        self, pod: str, number: int = 0, engine: str = "vllm", saved: SavedRank | None = None
    ) -> None:
        """Let another process go on from what this one saves, or from `saved`."""
        again = saved or self.saved(pod, number)
        sequence = self.sequence[pod, number]
        self.ingest.remove(pod, number)
        self.restore(pod, again, number, engine)
        self.sequence[pod, number] = sequence

    def _begin(self, pod: str, number: int, engine: str) -> RankIngest:
        self.sequence[pod, number] = 0
        followed = source(
            pod, rank=number, decode=CODECS[engine], has_replay=False, dialect=engine,
            capacity=self.capacity,
        )  # fmt: skip
        return self.ingest.add(followed)

    def send(self, pod: str, *events: Event, number: int = 0) -> None:
        """Let a rank publish one batch."""
        sequence = self.sequence.get((pod, number), 0)
        payload = msgspec.msgpack.encode([1.0 + sequence, list(events), number])
        self.frames(pod, [payload], number=number)

    def frames(self, pod: str, payloads: Iterable[bytes], *, number: int = 0) -> None:
        """Let a rank publish batches that arrive together."""
        rank = self.rank(pod, number)
        first = self.sequence[pod, number]
        frames = [("", first + at, payload) for at, payload in enumerate(payloads)]
        self.sequence[pod, number] += len(frames)
        rank.live_many(frames)

    def lose(self, pod: str, number: int = 0) -> None:
        """Skip a sequence number, as if a batch was lost."""
        self.sequence[pod, number] += 1

    def doubt(self, pod: str, number: int = 0) -> None:
        """Reconnect a rank, so that all its blocks are in doubt."""
        rank = self.rank(pod, number)
        rank.disconnected()
        rank.connected()

    def held(
        self, tokens: list[int], size: int, *, lora: str = "", salt: str = ""
    ) -> dict[tuple[str, int, str, int], frozenset[int]]:
        """Return which blocks of a prompt each place holds: pod, rank, tier, group."""
        root = Keyspace("m", size, lora, salt).root()
        chain = Chain(root, pack_tokens(tokens), size, len(tokens) // size)
        found: dict[tuple[str, int, str, int], frozenset[int]] = {}
        for place, start, stop in self.ingest.match(chain):
            name = place.pod, place.rank, str(place.tier), place.group
            found[name] = found.get(name, frozenset()) | frozenset(range(start, stop))
        return found

    def blocks(self, tokens: list[int], size: int) -> dict[str, int]:
        """Return how many blocks of a prompt each pod's rank 0 holds in its fastest tier."""
        return {
            pod: len(there)
            for (pod, number, tier, _), there in self.held(tokens, size).items()
            if (number, tier) == (0, "gpu")
        }
