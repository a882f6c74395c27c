"""The simulated router: the code of `warmpath serve`, on a virtual clock.

    events of engines ──► WatchedRank ──► index ─┐
    metrics, once a scrape ──► LoadTable ────────┼──► Picker ──► a pod's number
    first tokens and ends, at once ──────────────┘

Events arrive as a publisher's deltas of block keys, which `Followed` makes: where an engine holds
several copies of a block, its key is added with the first copy and removed with the last.
The code of `router`, `indexer` and `scorer` makes all decisions, with the defaults of `warmpath serve`.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import count
from random import Random
from typing import Literal, get_args

from indexer.believed.beliefs import Believed
from indexer.engines.event import Tier
from indexer.index.contract import Index
from indexer.ingest import Ingest
from indexer.keys.key import Chain
from indexer.keys.word import WORD_BYTES, pack_words
from indexer.pb.warmpath.watch.v1 import cache_watch_pb2 as pb
from indexer.resolve.holding import Holding
from indexer.watch.watched_rank import WatchedRank
from router.commands.simulate.access_log import LoggedRequest
from router.commands.simulate.fleet import SimulatedEngine
from router.commands.simulate.study import Variant
from router.config import schema as config
from router.load.engine_metrics import Observed
from router.match.scorer import Scorer
from router.pick.picking import Picking
from router.pick.weigh import Ask
from router.pods.table import Pod
from scorer.prefill import PrefillModel
from simworker.v1.cache.kv_cache_event import BlockRemoved, BlockStored, CacheEvent

MODEL = "simulated"
SESSION_POLICY = "session-hash"
TICK = 1.0
"""Least seconds between two calls of `Ingest.tick`, which lets time pass (expiry, staleness)."""

Reports = Literal["all", "ends", "none"]
"""The gateway's reports: first tokens and ends, only ends, or none."""
REPORTS: tuple[Reports, ...] = get_args(Reports)


class LoggedPrompt:
    """A logged prompt, which has only block keys, in the form that the picker needs."""

    __slots__ = ("_chain", "model", "tokens")

    def __init__(self, keys: bytes, tokens: int, block_size: int) -> None:
        self.model = MODEL
        self.tokens = tokens
        blocks = len(keys) // WORD_BYTES
        self._chain = Chain(0, b"", block_size, blocks, (), keys)

    def chain(self, block_size: int, hash_seed: str, *, lookahead: bool = False) -> Chain:
        """Return the logged keys; the arguments change nothing, as these have one block size."""
        del block_size, hash_seed, lookahead
        return self._chain


class NothingArrives(Believed):
    """Beliefs without arriving blocks: the router waits for events instead."""

    def arrive(self, pod: str, rank: int, keys: bytes, *, expires: float) -> int:
        """Do nothing: no block is believed to be arriving."""
        del keys
        return super().arrive(pod, rank, b"", expires=expires)


class Followed:
    """One rank's cache as a publisher beside its engine would follow it.

    With `is_shared` several engines send events of one cache; a block then counts once.
    """

    def __init__(self, rank: WatchedRank, block_size: int, *, is_shared: bool = False) -> None:
        self._rank = rank
        self._is_shared = is_shared
        self._held = Holding()
        self._state = pb.RankState(
            trust="exact",
            reason="followed from the engine's start",
            groups=[pb.Group(number=0, kind="full_attention", block_size=block_size)],
        )
        rank.connected()
        rank.take_state(self._state)

    def take(self, events: Sequence[CacheEvent]) -> None:
        """Apply an engine's cache events."""
        changes = []
        for event in events:
            if isinstance(event, BlockStored):
                fresh = [key for name in event.block_hashes for key in self._hold(int(name))]
                changes.append(_added(fresh))
            elif isinstance(event, BlockRemoved):
                gone = [key for name in event.block_hashes for key in self._release(int(name))]
                changes.append(_gone(gone))
        self.change(changes)

    def _hold(self, name: int) -> Sequence[int]:
        if self._is_shared and name in self._held.copies:
            return ()
        return self._held.hold(name, (name,))

    def _release(self, name: int) -> Sequence[int]:
        if self._is_shared and name not in self._held.copies:
            return ()
        return self._held.release(name, (name,))

    def change(self, changes: Sequence[pb.Change]) -> None:
        """Send changes to the router."""
        self._rank.take_delta(pb.Delta(changes=changes, state=self._state))


def _added(keys: Sequence[int]) -> pb.Change:
    return pb.Change(added=pb.Keys(tier=Tier.GPU, keys=pack_words(keys)))


def _gone(keys: Sequence[int]) -> pb.Change:
    return pb.Change(gone=pb.Keys(tier=Tier.GPU, keys=pack_words(keys)))


class Record:
    """An LRU of the prompts sent to a pod; the router gets its changes in place of events."""

    def __init__(self, followed: Followed, blocks: int) -> None:
        self._followed = followed
        self._blocks = blocks
        self._sent: OrderedDict[int, None] = OrderedDict()

    def send(self, keys: Sequence[int]) -> None:
        """Record that a prompt was sent to the pod."""
        sent = self._sent
        fresh = [key for key in keys if key not in sent]
        for key in reversed(keys):
            sent[key] = None
            sent.move_to_end(key)
        gone = []
        while len(sent) > self._blocks:
            gone.append(sent.popitem(last=False)[0])
        self._followed.change([_added(fresh), _gone(gone)])


class SimulatedRouter:
    """Routes requests to pods by number. Times are seconds of the cluster's clock.

    `eventless` are the pods without events, `scrape` is the interval of reading metrics, `reports` the
    kind of reports. `counts_last_block`: whether engines reuse a block that ends with its prompt.
    """

    def __init__(
        self,
        variant: Variant,
        engines: Sequence[SimulatedEngine],
        new_index: Callable[[], Index],
        *,
        blocks: int,
        block_size: int,
        counts_last_block: bool,
        estimate: PrefillModel,
        eventless: frozenset[int],
        scrape: float,
        reports: Reports,
        seed: int,
    ) -> None:
        self._variant = variant
        self._engines = engines
        self._block_size = block_size
        self._counts_last_block = counts_last_block
        self._scrape = scrape
        self._reports = reports
        self._scraped = self._ticked = float("-inf")
        self._now = 0.0
        self._booked: dict[str, str] = {}
        numbers = count()
        self._ingest = Ingest(
            new_index(),
            hash_seed="",
            pending_bytes=config.Events().pending_bytes,
            stale_after=config.Events().stale_seconds,
            clock=lambda: self._now,
        )
        names = [f"pod-{number}" for number in range(len(engines))]
        self._numbers = {name: number for number, name in enumerate(names)}
        watched = [self._ingest.watch(name, 0) for name in names]
        self._pods = [
            Pod(name, "", MODEL, (rank,), has_events=number not in eventless, blocks=blocks)
            for number, (name, rank) in enumerate(zip(names, watched, strict=True))
        ]
        followed = {
            number: Followed(rank, block_size, is_shared=variant.is_pooled)
            for number, rank in enumerate(watched)
            if variant.keeps_record or number not in eventless
        }
        self._records: dict[int, Record] = {}
        self._followed: dict[int, Followed] = {}
        if variant.keeps_record:
            self._records = {number: Record(one, blocks) for number, one in followed.items()}
        else:
            self._followed = followed
        self._picking = Picking(
            config.Pick(
                policy=variant.policy,
                options=dict(variant.options),
                prefill_base_seconds=estimate.base,
                prefill_token_seconds=estimate.per_token,
                prefill_context_seconds=estimate.per_context,
            ),
            config.Booking(),
            index=new_index(),
            new_id=lambda: str(next(numbers)),
            rng=Random(seed),
            beliefs=Believed if variant.counts_arriving else NothingArrives,
        )
        self._picker = self._picking.picker(
            Scorer(
                self._ingest,
                "",
                believed=self._picking.believed,
                # With `pooled` all pods share one cache, and only the first pod's rank gets its events.
                shared_tiers={MODEL: {str(Tier.GPU)}} if variant.is_pooled else {},
                assumed_block_size=block_size,
            )
        )

    def place(self, request_id: str, one: LoggedRequest, now: float) -> int:
        """Pick a pod for a request and book it there."""
        self._pass_time(now)
        keys = one.packed_keys
        if not self._counts_last_block:
            keys = keys[: (one.prompt_tokens - 1) // self._block_size * WORD_BYTES]
        by_session = self._variant.policy == SESSION_POLICY
        ask = Ask(
            LoggedPrompt(keys, one.prompt_tokens, self._block_size),
            self._pods,
            session=one.affinity if by_session else one.session,
        )
        self._booked[request_id], choice = self._picker.choose(ask, now)
        number = self._numbers[choice.options[0].pod.id]
        if self._records:
            self._records[number].send(one.keys)
        return number

    def _pass_time(self, now: float) -> None:
        self._now = now
        if now - self._ticked >= TICK:
            self._ticked = now
            self._ingest.tick(1 << 16)
        if now - self._scraped >= self._scrape:
            self._scraped = now
            for pod, engine in zip(self._pods, self._engines, strict=True):
                load = engine.load()
                seen = Observed(load.running, load.waiting, load.kv_cache_usage, now)
                self._picking.loads.observe(pod.id, 0, seen)

    def take_events(self, now: float, number: int, events: Sequence[CacheEvent]) -> None:
        """Apply a pod's cache events."""
        self._now = now
        followed = self._followed.get(0 if self._variant.is_pooled else number)
        if followed is not None:
            followed.take(events)

    def first_token(self, request_id: str, now: float) -> None:
        """Report a request's first token."""
        if self._reports == "all":
            self._picker.first_token(self._booked[request_id], now)

    def finished(self, request_id: str, cached: int, prompt_tokens: int, now: float) -> None:
        """Report a request's end, with the engine's cached tokens."""
        booking = self._booked.pop(request_id)
        if self._reports == "none":
            return
        self._picker.found_cached(booking, cached, prompt_tokens)
        self._picker.ended(booking, "finished", now)

    def check(self) -> None:
        """Raise BrokenInvariantError if any part is inconsistent."""
        self._ingest.check()
        self._picking.check()
