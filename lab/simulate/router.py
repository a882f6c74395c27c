"""The simulated router: the code of `warmpath serve`, on a virtual clock.

    events of engines ──► WatchedRank ──► index ─┐
    metrics, once a scrape ──► LoadTable ────────┼──► Picker ──► a pod's number
    reports of first tokens and ends ────────────┤
    bookings of other routers ───────────────────┘

The code of `router`, `indexer` and `scorer` makes all decisions, with the defaults of `warmpath serve`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from math import inf
from random import Random
from typing import NamedTuple

from msgspec import structs

from warmpath.indexer.believed import Believed
from warmpath.indexer.embedded import embedded_index
from warmpath.indexer.engines.cache_groups import Lookahead
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.keys.key import WORD_BYTES, Chain
from warmpath.indexer.ranks import Ingest
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.redis.command import Call, Command, Reply
from warmpath.indexer.stream.machine import PENDING_BYTES
from warmpath.lab.simulate.cell import Cell
from warmpath.lab.simulate.fleet import SimulatedEngine
from warmpath.lab.simulate.followed import Followed, Record
from warmpath.lab.simulate.study import variant
from warmpath.lab.simulate.traffic.requests import LoggedRequest
from warmpath.lab.simworker.serial.engine import SerialEngine
from warmpath.lab.simworker.v1.cache.kv_cache_event import CacheEvent
from warmpath.router.config import schema as config
from warmpath.router.load.engine_metrics import Observed
from warmpath.router.match.match import Scorer
from warmpath.router.peers.exchange import PeerBookings
from warmpath.router.pick import pick as made
from warmpath.router.pick.eligible import Field, NoPodError, Wanted, field_of
from warmpath.router.pick.picking import Picking
from warmpath.router.pick.weigh import Ask
from warmpath.router.pods.table import Pod, Status, that_serve
from warmpath.router.queue.demand import Demand, Kind
from warmpath.router.queue.queue import Queue
from warmpath.router.queue.request import Waiting
from warmpath.router.queue.standing import engine_priority

MODEL = "simulated"
SESSION_POLICY = "session-hash"
TICK = 1.0
"""Least seconds between two calls of `Ingest.tick`, which lets time pass (expiry, staleness)."""

WANTED = Wanted(MODEL)
QUEUE = structs.replace(config.QueueTable(), max_requests=1 << 40)
"""The queue's defaults, except that it refuses no request: one would have no time to first token."""
NAMES = KeyNames("warmpath")

INDEX_BYTES = 64 << 20
SEEDS = 1_000_003
"""Distance of the seeds of a run's routers."""


class Pick(NamedTuple):
    """A router's answer: its booking, the pod's number, and a priority."""

    booking: str
    pod: int
    priority: int
    """The request's priority at an engine that orders by it: lower comes first."""


class LoggedPrompt:
    """A logged prompt, which has only block keys, in the form that the picker needs."""

    __slots__ = ("_chain", "model", "tokens")
    is_blind = False
    by_bytes = None

    def __init__(self, keys: bytes, tokens: int, block_size: int) -> None:
        self.model = MODEL
        self.tokens = tokens
        blocks = len(keys) // WORD_BYTES
        self._chain = Chain(0, b"", block_size, blocks, (), keys)

    def chain(
        self, block_size: int, hash_seed: str, *, lookahead: Lookahead = Lookahead.NONE
    ) -> Chain:
        """Return the logged keys; the arguments change nothing, as these have one block size."""
        del block_size, hash_seed, lookahead
        return self._chain


class NothingArrives(Believed):
    """Beliefs without arriving blocks: the router waits for events instead."""

    def arrive(self, pod: str, rank: int, keys: bytes, *, expires: float, held: int = 0) -> int:
        """Do nothing: no block is believed to be arriving."""
        del keys, held
        return super().arrive(pod, rank, b"", expires=expires)


class SimulatedRouter:
    """Routes requests to pods by number. Times are seconds of the cluster's clock."""

    def __init__(
        self, cell: Cell, engines: Sequence[SimulatedEngine], block_size: int, number: int
    ) -> None:
        """Build the router of this number, from 0, of a cell."""
        self._cell = cell
        self._variant = chosen = variant(cell.policy)
        self._engines = engines
        self._block_size = block_size
        with_events = cell.pods - round(cell.no_events_share * cell.pods)
        name = f"{number:012x}" if cell.shares_bookings else ""
        latency, factor = cell.latency, cell.estimate_factor
        self._scraped = self._ticked = float("-inf")
        self._now = 0.0
        self._dead: set[int] = set()
        self._batches = [0] * cell.pods
        """How many batches of events each pod has sent."""
        numbers = count()
        self._ingest = Ingest(
            embedded_index(INDEX_BYTES),
            hash_seed="",
            pending_bytes=PENDING_BYTES,
            stale_after=config.EventsTable().stale_seconds,
            clock=lambda: self._now,
        )
        names = [f"pod-{at}" for at in range(cell.pods)]
        self._numbers = {pod: at for at, pod in enumerate(names)}
        watched = [self._ingest.watch(pod, 0) for pod in names]
        blocks = cell.blocks_per_pod
        self._pods = [
            Pod(pod, "", MODEL, (rank,), has_events=at < with_events, blocks=blocks)
            for at, (pod, rank) in enumerate(zip(names, watched, strict=True))
        ]
        followed = {
            at: Followed(rank, block_size, is_shared=chosen.is_pooled)
            for at, rank in enumerate(watched)
            if chosen.keeps_record or at < with_events
        }
        self._records: dict[int, Record] = {}
        self._followed: dict[int, Followed] = {}
        if chosen.keeps_record:
            self._records = {at: Record(one, blocks) for at, one in followed.items()}
        else:
            self._followed = followed
        self._picking = Picking(
            config.PickTable(
                policy=chosen.policy,
                options=dict(chosen.options),
                prefill_base_seconds=latency.base * factor,
                prefill_token_seconds=latency.prefill * factor,
                prefill_context_seconds=latency.context * factor,
            ),
            config.BookingTable(),
            QUEUE,
            index=embedded_index(INDEX_BYTES),
            scorer=partial(
                Scorer,
                self._ingest,
                "",
                # With `pooled` all pods share one cache, and only the first pod's rank gets its events.
                shared_tiers={MODEL: {str(Tier.GPU)}} if chosen.is_pooled else {},
                assumed_block_size=block_size,
            ),
            new_id=lambda: str(next(numbers)),
            rng=Random(cell.seed + number * SEEDS),
            share=partial(PeerBookings, name, NAMES) if name else None,
            beliefs=Believed if chosen.counts_arriving else NothingArrives,
            batch=self._batch,
        )
        self._picker = self._picking.picker
        kind: Kind = MODEL, "both"
        self._demand = Demand([kind], self._pods, self._picking.loads, dict)
        self._field = field_of(self._pods)
        self._waiting: dict[Waiting, tuple[str, LoggedRequest]] = {}
        self._queue = Queue(self._picking, QUEUE, eligible=self._eligible) if cell.queue else None
        self.next_at = inf
        """When to call `release` if nothing comes before; infinite: nothing waits."""

    def _batch(self, pod: str, _rank: int) -> int:
        """Return a number that grows while a pod's engine works, as its batches of events do."""
        number = self._numbers[pod]
        engine = self._engines[number]
        # Engines announce the blocks that answers fill, all the time; the serial one does not.
        is_decoding = isinstance(engine, SerialEngine) and engine.is_decoding
        return self._batches[number] + (int(self._now) if is_decoding else 0)

    def _eligible(self, _wanted: Wanted) -> Field:
        pods = that_serve(self._pods) if self._dead else self._pods
        if not pods:
            raise NoPodError("every pod is dead")
        if self._field.of != pods:
            self._field = field_of(pods)
        return self._field

    def ask(self, request_id: str, one: LoggedRequest, now: float) -> Pick | None:
        """Pick a pod for a request and book it there; return None if the request waits.

        If it waits, `release` must follow at the same time.
        """
        self._pass_time(now)
        self._look_at_engines(now)
        keys = one.packed_keys
        if self._cell.engine != "serial":
            # Other engines compute a block anew that ends with its prompt.
            keys = keys[: (one.prompt_tokens - 1) // self._block_size * WORD_BYTES]
        by_session = self._variant.policy == SESSION_POLICY
        ask = Ask(
            LoggedPrompt(keys, one.prompt_tokens, self._block_size),
            self._eligible(WANTED),
            WANTED,
            session=one.affinity if by_session else one.session,
        )
        if self._queue is not None:
            waiting = Waiting(ask, arrived=now)
            self._queue.enter(waiting, now)
            self._waiting[waiting] = request_id, one
            return None
        return self._picked(one, self._picker.reserve(ask, now), now)

    def _picked(self, one: LoggedRequest, placed: made.Pick, now: float) -> Pick:
        priority = engine_priority(placed, self._picker.precedence, 0.0)
        self._picker.settle(placed, now)
        number = self._numbers[placed.picked.pod]
        if self._records:
            self._records[number].send(one.keys)
        return Pick(placed.booking_id, number, priority)

    def release(self, now: float) -> list[tuple[str, Pick]]:
        """Return (request id, pick) of each request that waited and goes now."""
        if self._queue is None:
            return []
        self._pass_time(now)
        released = self._queue.release(now)
        self.next_at = released.next_at
        for error in released.refused.values():
            raise error
        found = []
        for waiting, placed in released.sent.items():
            request_id, one = self._waiting.pop(waiting)
            found.append((request_id, self._picked(one, placed, now)))
        return found

    def _pass_time(self, now: float) -> None:
        self._now = now
        if now - self._ticked >= TICK:
            self._ticked = now
            self._ingest.tick(1 << 16)

    def _look_at_engines(self, now: float) -> None:
        """Read the engines' metrics, if the interval is over.

        Only arrivals lead to a reading, so an empty queue sees the same metrics as a router without one.
        """
        if now - self._scraped >= self._cell.scrape:
            self._scraped = now
            for number, (pod, engine) in enumerate(zip(self._pods, self._engines, strict=True)):
                if number in self._dead:
                    continue
                load = engine.load()
                seen = Observed(load.running, load.waiting, load.kv_cache_usage, now)
                self._picking.observe(pod.id, 0, seen)

    def take_events(self, now: float, number: int, events: Sequence[CacheEvent]) -> None:
        self._now = now
        self._batches[number] += 1
        followed = self._followed.get(0 if self._variant.is_pooled else number)
        if followed is not None:
            followed.take(events)

    def share(self, run: Callable[[Sequence[Command | Call]], list[Reply]], now: float) -> None:
        """Exchange bookings with other routers through Redis, or its stand-in, that `run` asks."""
        peers = self._picking.peers
        if peers is not None:
            peers.answer(run(peers.ask(now)), now)
            for name in self._picking.loads.take_changes(now):
                self._picking.loads.renew(*name, now)

    def died(self, number: int) -> None:
        """Take a pod's engine for dead: its stream of events and its probes fail."""
        self._dead.add(number)
        self._pods[number].status = Status(healthy=False, reason="it died")
        if number in self._followed:
            self._followed[number].died()

    def began_anew(self, number: int) -> None:
        """Take a dead pod's engine for a new one, which holds nothing."""
        self._dead.discard(number)
        self._pods[number].status = Status()
        self._picking.engine_ended(self._pods[number])
        if number in self._followed:
            self._followed[number].began_anew()

    def ended(self, number: int) -> None:
        """Send a pod no more requests; it finishes those that it has."""
        self._dead.add(number)
        self._pods[number].status = Status(healthy=False, reason="it ends")

    def look_at_demand(self, now: float) -> None:
        self._pass_time(now)
        self._look_at_engines(now)
        self._demand.look(now)

    @property
    def pods_needed(self) -> float:
        """The pods that the work needs, by the last `look_at_demand`."""
        return self._demand.rows[MODEL, "both"].pods

    def first_token(self, pick: Pick, now: float) -> None:
        if self._cell.reports == "all":
            self._picker.first_token(pick.booking, now)

    def finished(self, pick: Pick, cached: int, prompt_tokens: int, now: float) -> None:
        if self._cell.reports != "none":
            self._picker.found_cached(pick.booking, cached, prompt_tokens)
            self._picker.ended(pick.booking, "finished", now)

    def failed(self, pick: Pick, now: float) -> None:
        if self._cell.reports != "none":
            self._picker.ended(pick.booking, "failed", now)
