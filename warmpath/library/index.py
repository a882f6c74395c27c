"""The index: the blocks of prompts that each pod holds, according to its events."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from warmpath.indexer.embedded import embedded_index
from warmpath.indexer.engines import vllm
from warmpath.indexer.engines.event import Batch, Event, MalformedEventError, Tier
from warmpath.indexer.engines.table import ENGINES
from warmpath.indexer.follow.answer import take_answer
from warmpath.indexer.follow.instance import Engine, RankSource
from warmpath.indexer.follow.stream_source import RankIngest
from warmpath.indexer.index.slot import RankName
from warmpath.indexer.rank import Rank
from warmpath.indexer.ranks import SWEEP_BUDGET, TICK_SECONDS, Ingest
from warmpath.indexer.stream.machine import PENDING_BYTES
from warmpath.indexer.trust import Trust
from warmpath.library.check_events import check_events
from warmpath.router.config import schema as config
from warmpath.router.pods.table import Pod, PodTable, Role

LEAST_BYTES = 16 << 20
MOST_PODS = 16_384
MOST_RANKS = 1024
MOST_NAME_CHARS = 1024

_EVENTS = config.EventsTable()


class Index:
    """The blocks of one model's prompts that each pod holds, in at most `max_bytes`. Thread-safe.

    `clock` returns seconds and never goes back; all times of an index, its scorers and pickers are its
    times. The first index of a process compiles, or loads compiled code: half a second, once a minute.

    >>> index = Index("demo")
    >>> index.feed("pod-1", [Stored.of([11, 12], range(32), block_size=16)])
    >>> index.trust("pod-1").level
    <Level.EXACT: 'exact'>
    """

    def __init__(
        self,
        model: str,
        *,
        max_bytes: int = config.IndexTable().max_bytes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin without pods. Raises ValueError if `max_bytes` is below 16 MiB."""
        if max_bytes < LEAST_BYTES:
            raise ValueError(f"max_bytes is {max_bytes}; it must be {LEAST_BYTES} or more")
        self.model = model
        self.clock = clock
        self.table = PodTable()
        """The pods, for scorers and pickers."""
        self.ingest = Ingest(
            embedded_index(max_bytes), hash_seed="", pending_bytes=PENDING_BYTES,
            stale_after=_EVENTS.stale_seconds, clock=clock,
        )  # fmt: skip
        """The ranks, for scorers and pickers."""
        self.changes = 0
        """How often a pod was added or removed."""
        self._writing = threading.RLock()
        self._ticked = clock()
        self._pods: dict[str, Pod] = {}
        self._numbered: dict[RankName, bool] = {}
        """Whether a rank's batches have come with sequence numbers."""

    # Pods

    @property
    def pods(self) -> list[str]:
        """The names of the pods, in the order in which they came."""
        return list(self._pods)

    def add(
        self,
        pod: str,
        *,
        engine: str = "",
        ranks: int = 1,
        blocks: int = 0,
        block_size: int = 32,
        address: str = "",
        role: Role = "both",
        has_events: bool = True,
    ) -> None:
        """Add a pod before its first event. `feed` itself adds an unknown pod, with one rank.

        `engine` is vllm, sglang or trtllm, whose payloads it will be fed; empty for a pod that is fed
        values. The other arguments are those of [[pods]] in the router's file: `blocks` is the size of
        a rank's cache (0: not known), `block_size` the tokens_per_block of trtllm, `address` what a
        pick returns. Without events, a pod holds what a picker believes that it holds.

        Raises ValueError for a pod that is known already, and for an impossible value.
        """
        if not 1 <= len(pod) <= MOST_NAME_CHARS:
            raise ValueError(f"pod has {len(pod)} characters; it must have 1 to {MOST_NAME_CHARS}")
        _check("ranks", ranks, 1, MOST_RANKS)
        _check("blocks", blocks, 0, (1 << 32) - 1)
        _check("block_size", block_size, 1, 1 << 20)
        if engine not in ("", *ENGINES):
            raise ValueError(f"engine is {engine!r}; it must be one of {', '.join(ENGINES)}")
        if role not in ("both", "prefill", "decode"):
            raise ValueError(f"role is {role!r}; it must be one of both, prefill, decode")
        with self._writing:
            if pod in self._pods:
                raise ValueError(f"pod {pod!r} is there already")
            if len(self._pods) >= MOST_PODS:
                raise ValueError(f"pod {pod!r} is one too many; an index has at most {MOST_PODS}")
            described = Engine(
                pod, self.model, engine, events="", ranks=ranks, blocks=blocks,
                block_size=block_size,
            )  # fmt: skip
            sources = described.sources() if engine else _value_sources(described)
            found = Pod(
                pod, address, self.model, tuple(self._ranks_of(sources, has_events=has_events)),
                role=role, has_events=has_events, blocks=blocks, engine=engine,
            )  # fmt: skip
            self._pods[pod] = found
            self.table.add(found)
            self.changes += 1

    def _ranks_of(self, sources: Iterable[RankSource], *, has_events: bool) -> Iterator[Rank]:
        for source in sources:
            if not has_events:
                yield self.ingest.add_blind(source.pod, source.rank)
                continue
            rank = self.ingest.add(source)
            rank.connected()
            yield rank

    def remove(self, pod: str) -> None:
        """Forget a pod and all that it holds. Raises ValueError for an unknown pod.

        Pickers forget what they have booked and believe there when they are used next.
        """
        with self._writing:
            found = self._found(pod)
            del self._pods[pod]
            self.table.remove(pod)
            self.changes += 1
            for rank in found.ranks:
                self._numbered.pop(RankName(pod, rank.number), None)
                self.ingest.remove(pod, rank.number)

    # Events

    def feed(
        self,
        pod: str,
        events: Iterable[Event] | bytes,
        *,
        rank: int = 0,
        sequence: int | None = None,
    ) -> None:
        """Apply the events of a pod's rank, in the order in which its cache changed.

        `events` are values (`Stored`, `Removed`, `Moved`, `Cleared`), or an engine's own payload: a
        batch of vLLM's or SGLang's, or an answer of TensorRT-LLM's `/kv_cache_events`, which says
        itself which rank and number each event has. An unknown pod that is fed a payload counts as one
        of vLLM. A pod with an engine may be fed values too, more slowly.

        With the engine's `sequence` of a batch, a duplicate is ignored, a gap degrades the trust, and
        a number that went back is a new life. Without it each call is the next batch: call `missed`
        where one was lost. Either all batches of a rank have a number, or none has.

        Raises ValueError, which names the event and the field, for an impossible value; then no event
        is applied. A `Stored` with an unknown parent, and a payload that cannot be read, raise nothing
        and degrade the trust, as any engine may send them.
        """
        batch = None if isinstance(events, bytes) else _batch_of(events)
        with self._writing:
            self.pass_time()
            if pod not in self._pods:
                _check("rank", rank, 0, 0)
                self.add(pod, engine="vllm" if isinstance(events, bytes) else "")
            found = self._found(pod)
            if isinstance(events, bytes) and not found.engine:
                raise ValueError(
                    f"pod {pod!r} was added without an engine; a payload needs its name"
                )
            if isinstance(events, bytes) and found.engine == "trtllm":
                if rank or sequence is not None:
                    raise ValueError("rank and sequence: TensorRT-LLM's payload has its own")
                self._take_answer(found, events)
                return
            followed = self._followed(found, rank)
            self._note_numbered(pod, rank, is_numbered=sequence is not None)
            with _doubted_by_errors(followed):
                if not followed.is_connected:
                    followed.connected()
                if isinstance(events, bytes):
                    number = followed.stream.expected if sequence is None else sequence
                    followed.live_many([(followed.source.topic, number, events)])
                elif batch is not None:
                    followed.decoded(batch)

    def _take_answer(self, pod: Pod, answer: bytes) -> None:
        followed = {rank.number: self._followed(pod, rank.number) for rank in pod.ranks}
        for number in followed:
            self._note_numbered(pod.id, number, is_numbered=True)
        with _doubted_by_errors(*followed.values()):
            take_answer(followed, answer)

    def missed(self, pod: str, reason: str, *, rank: int = 0) -> None:
        """Degrade a rank's trust, as events were lost, until its cache is cleared or wholly replaced.

        Raises ValueError for an unknown rank.
        """
        with self._writing:
            self._followed(self._found(pod), rank).missed(reason)

    def disconnected(self, pod: str) -> None:
        """Say that a pod's events do not arrive any more; a second from now it is stale.

        The next event connects it again, degraded, since others may be missing. Raises ValueError for
        an unknown pod.
        """
        with self._writing:
            for rank in self._found(pod).ranks:
                if isinstance(rank, RankIngest):
                    rank.disconnected()

    # What is known

    def trust(self, pod: str, *, rank: int = 0) -> Trust:
        """Return the trust in what a rank is shown to hold. Raises ValueError for an unknown rank."""
        self.pass_time()
        return self._rank(self._found(pod), rank).trust

    def blocks(self, pod: str, *, rank: int = 0) -> Mapping[Tier, int]:
        """Return how many blocks a rank holds in each tier. Raises ValueError for an unknown rank."""
        return self._rank(self._found(pod), rank).blocks()

    def pass_time(self) -> None:
        """Let ranks become stale, and free dropped blocks; `feed`, `trust`, scores and picks do so."""
        if self.clock() - self._ticked < TICK_SECONDS or not self._writing.acquire(blocking=False):
            return
        try:
            self._ticked = self.clock()
            self.ingest.tick(SWEEP_BUDGET)
        finally:
            self._writing.release()

    def _found(self, pod: str) -> Pod:
        found = self._pods.get(pod)
        if found is None:
            raise ValueError(f"pod is {pod!r}; the index has no such pod")
        return found

    def _rank(self, pod: Pod, rank: int) -> Rank:
        _check("rank", rank, 0, len(pod.ranks) - 1)
        return pod.ranks[rank]

    def _followed(self, pod: Pod, rank: int) -> RankIngest:
        fed = self._rank(pod, rank)
        if not isinstance(fed, RankIngest):
            raise ValueError(f"pod {pod.id!r} was added without events")  # noqa: TRY004  no type of the caller's
        return fed

    def _note_numbered(self, pod: str, rank: int, *, is_numbered: bool) -> None:
        if self._numbered.setdefault(RankName(pod, rank), is_numbered) is not is_numbered:
            earlier = "without" if is_numbered else "with"
            raise ValueError(f"sequence: earlier batches of {pod!r} came {earlier} numbers")


def _value_sources(pod: Engine) -> Iterator[RankSource]:
    """Yield the sources of ranks whose batches come decoded, so that they are never scanned."""
    for rank in range(pod.ranks):
        yield RankSource(
            pod.pod, rank, pod.model, vllm.decode, has_replay=False, capacity=pod.blocks
        )


def _batch_of(events: Iterable[Event]) -> Batch:
    batch = Batch(0.0, tuple(events))
    try:
        check_events(batch.events)
    except MalformedEventError as error:
        raise ValueError(str(error)) from None
    return batch


@contextmanager
def _doubted_by_errors(*ranks: RankIngest) -> Iterator[None]:
    """Let ranks hold nothing after an error, which may have left a batch half applied."""
    try:
        yield
    except Exception as error:
        for rank in ranks:
            rank.failed(f"a bug of ours: {type(error).__name__}")
        raise


def _check(field: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ValueError(f"{field} is {value}; it must be {least} to {most}")
