"""Asks an engine over HTTP for its health, models, version, cache size and load.

One file, since what one page says decides how the next one is read.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import msgspec

from warmpath.indexer.engines.table import ENGINES
from warmpath.indexer.follow.instance import EngineTls
from warmpath.indexer.rank import Rank
from warmpath.process.bytes import UNREADABLE
from warmpath.router.config.files import REFUSALS, EngineKey
from warmpath.router.load.engine_metrics import Observed, cache_blocks, lines, parse, samples_of
from warmpath.router.pods.answer import CutError
from warmpath.router.pods.connection import AnswerError, Connection, UnreachableError
from warmpath.router.pods.namespaces import limit_known
from warmpath.router.pods.sleep import PATHS, Answer, Sleep
from warmpath.router.pods.table import WELL, Pod, Status
from warmpath.router.prompt.limits import MOST_NAME_BYTES

log = logging.getLogger(__name__)

FAILURES = 2
"""Number of successive failed probes after which a pod that was up counts as down."""

SIGN_SECONDS = 10.0
"""How long an event or an answer to a request shows that an engine works, whose /health is late."""

REFUSES = 503
"""The status of /health if the engine itself accepts no requests: SGLang from SIGTERM on and while it
starts, vLLM while it drains and when its engine is dead. One such answer suffices."""

BUSY = frozenset({408, 425, 429, 504})
"""The statuses of /health that say no more than a late answer does: whoever answered, the engine or a
proxy before it, has too much to do."""

LOOKS = 15
"""Number of probes between two requests for a pod's models: adapters are loaded at runtime."""

HYBRID = (
    b"sglang:swa_available_tokens{", b"sglang:swa_evictable_tokens{", b"sglang:swa_token_usage{",
    b"sglang:mamba_available_tokens{", b"sglang:mamba_evictable_tokens{", b"sglang:mamba_usage{",
)  # fmt: skip
"""SGLang's gauges of caches beside the full one: free, cached, used. They are 0 where it has none."""
DRAFTS = b"vllm:spec_decode_num_draft"
"""The beginning of counters that only a vLLM with speculative decoding has, from its start on
(`vllm/v1/spec_decode/metrics.py`)."""

START_TIME = b"process_start_time_seconds"
"""The start of the engine's process, in seconds since the Unix epoch: a metric of prometheus_client
(vLLM, SGLang)."""
LATER_SECONDS = 0.01
"""Start times that differ by less are the same start, rounded."""
MOST_BYTES = 2 << 20
"""Longest answer per 16 ranks, rounded up; the metrics of eight ranks have about 1 MB."""
MOST_NAMES_BYTES = 64 << 10
"""Longest sum of the names of a pod's models and adapters: ListPods shows them all."""
MOST_VERSION_BYTES = 128


@dataclass(frozen=True, slots=True)
class Links:
    """The functions by which those who follow pods tell other parts what they find, and ask them."""

    observed: Callable[[str, int, Observed], None] = lambda *_: None
    """Called with a pod's id, a rank's number, and the load in the engine's metrics with the time of the
    answer."""
    ended: Callable[[Pod], None] = lambda _: None
    """Called when the engine has ended (its port refuses connections, or it answers that it accepts no
    requests), when it is healthy again, and when it has restarted between two probes."""
    gone: Callable[[Pod], None] = lambda _: None
    """Called when a pod was dropped."""
    listed: Callable[[], None] = lambda: None
    """Called when pods' adapters have changed."""
    answered: Callable[[Pod], float] = lambda _: -math.inf
    """Returns when a pod last answered a request; -inf: never."""


class ServedModel(msgspec.Struct, frozen=True):
    """One entry of /v1/models."""

    id: str
    parent: Any = None
    """An adapter's base model; None for a model itself."""


class ModelList(msgspec.Struct, frozen=True):
    """The answer of /v1/models."""

    data: list[ServedModel]


class Versioned(msgspec.Struct, frozen=True):
    """An engine's answer with its version."""

    version: str


Said = TypeVar("Said", ModelList, Versioned)


@dataclass(eq=False)
class Prober:
    """Probes one pod over one connection, with a pause of `interval()` seconds after each probe.

    Each request of a probe waits at most `timeout` seconds. With `tls` it uses HTTPS, and it sends the
    engine's `key`.
    """

    pod: Pod
    interval: Callable[[], float]
    timeout: float
    tls: EngineTls | None = None
    key: EngineKey = field(default_factory=EngineKey)
    links: Links = Links()
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._connection = Connection()
        self._sequences: list[int | None] = []
        self._event_at = -math.inf
        """When a probe last found that events had come."""
        self._down_at = -math.inf
        self._failures = 0
        self._sleep = Sleep()
        self._looks = 0
        """Number of probes since it came up."""
        self._has_ended = False
        self._is_doubted = False
        """Whether its list of models may have changed."""
        self._pausing: asyncio.Future[None] | None = None
        self._listed_at = -math.inf
        self._named = 0
        """The adapters that its events had named when its models were last asked for."""
        self._refused: dict[str, int] = {}
        """The pages that it refused when they were last asked for, with the status of the answer."""
        self._started = 0.0
        """The latest start of an engine's process in its metrics, in Unix seconds; 0: none yet."""
        self._bases: frozenset[str] = frozenset()
        """The models that it served at the last probe, without adapters."""
        self._was_well = False
        self._away: list[tuple[Rank, int]] | None = None
        """The ranks of an engine that was healthy and has ended, each with the number of restarts that
        its events had shown by then."""

    async def run(self) -> None:
        with contextlib.closing(self):
            while True:
                await self.look()
                await self._pause()

    def close(self) -> None:
        self._connection.close()

    async def _pause(self) -> None:
        """Wait for the interval; less if the models are doubted and were not asked for within it."""
        self._pausing = asyncio.get_running_loop().create_future()
        self._go_on_after(self.interval())
        if self._is_doubted:
            self.doubt_models()
        await self._pausing

    def _go_on_after(self, seconds: float) -> None:
        if self._pausing is not None:
            asyncio.get_running_loop().call_later(seconds, _go_on, self._pausing)

    def doubt_models(self) -> None:
        """Ask for the models at once, since they may have changed; at most once an interval."""
        self._is_doubted = True
        self._go_on_after(self._listed_at + self.interval() - self.clock())

    async def look(self) -> None:
        sequences, self._sequences = self._sequences, [rank.sequence for rank in self.pod.ranks]
        if sequences and sequences != self._sequences:
            self._event_at = self.clock()
        before = self.pod.status
        asked_at = self.clock()
        status, _, error = await self._ask("/health")
        problem, is_late = _problem(status, error)
        self._failures = self._failures + 1 if problem else 0
        self._has_ended = self._has_ended or status == REFUSES or _is_refused(error)
        if self._has_ended and self._was_well and self._away is None:
            self._away = [(rank, _restarts(rank)) for rank in self.pod.ranks]
        if not problem:
            self.pod.status = await self._well(asked_at)
            limit_known(self.pod)
        elif is_late:
            self.pod.status = self._late(problem)
            await self._load()
        elif before.healthy is None or status == REFUSES or self._failures >= FAILURES:
            self.pod.status = replace(
                before,
                healthy=False,
                reason=problem,
                is_late=False,
                refuses=status == REFUSES,
                refusal=self._refusal(),
            )
        self._tell(before)

    async def _well(self, asked_at: float) -> Status:
        """Return the status of a pod whose /health answers, by its other pages."""
        pod, before = self.pod, self.pod.status
        if self._has_ended:
            self._has_ended = False
            self.links.ended(pod)
        page = await self._load()
        is_dated = self._note_start(page)
        away = () if is_dated else self._away or ()
        if silent := [rank for rank, count in away if _restarts(rank) == count]:
            self._doubt("the engine accepted no requests and accepts them again", silent)
        # An engine may start again between two probes, with other options.
        is_anew = not before.healthy or not self._looks or self._away is not None
        self._was_well, self._away = True, None
        is_due = is_anew or not self._looks % LOOKS
        sleep, slept = self._sleep, self._sleep.state
        if ENGINES[pod.engine].can_sleep:
            await sleep.look(page, self._ask, anew=not self._looks % LOOKS)
        for rank in pod.ranks if sleep.has_no_cache else ():
            rank.emptied(sleep.reason)
        if sleep.has_no_cache and sleep.state != slept:
            self.links.ended(pod)
        blocks = cache_blocks(page) if is_anew else 0
        for rank in pod.ranks if blocks else ():
            rank.learn_capacity(blocks)
        told = before
        is_doubted = self._is_doubted or self._named != _adapters(pod.ranks)
        if is_due or is_doubted or self._refused:
            models, adapters = await self._models(is_dated=is_dated)
            path = ENGINES[pod.engine].version_path
            said = await self._read(path, Versioned)
            is_named = said and 0 < len(said.version.encode()) <= MOST_VERSION_BYTES
            version = said.version if said and is_named else before.version
            told = replace(before, models=models, adapters=adapters, version=version)
        self._looks = self._looks + 1 if before.healthy else 1
        # Most pages have none of these names, which one search shows.
        caches = HYBRID if b"sglang:" in page else ()
        beside = (value for name in caches for _, _, value in samples_of(page, name))
        return replace(
            told,
            healthy=not sleep.state,
            reason=sleep.reason if sleep.state else WELL,
            refuses=sleep.has_no_cache,
            is_late=False,
            refusal=self._refusal(),
            looked_at=asked_at,
            is_hybrid=any(0 < used < math.inf for used in beside)
            or (told.is_hybrid and not is_anew),
            drafts=any(lines(page, DRAFTS)) or (told.drafts and not is_anew),
        )

    def _tell(self, before: Status) -> None:
        """Log what has changed, and say that the engine has ended if it is down for that."""
        status = self.pod.status
        if status.adapters != before.adapters:
            self.links.listed()
        if status.refusal != before.refusal:
            log.warning("pod %s: %s", self.pod.id, status.refusal or "its pages are open again")
        if (status.healthy, status.is_late) != (before.healthy, before.is_late):
            state = "down" if status.healthy is False else "late" if status.is_late else "up"
            if state == "down":
                self._down_at = self.clock()
            log.info("pod %s: %s: %s", self.pod.id, state, status.reason)
            if status.healthy is False and self._has_ended and not status.is_late:
                self.links.ended(self.pod)
        elif status.healthy is False and status.reason != before.reason:
            log.info("pod %s: still down: %s", self.pod.id, status.reason)

    def _late(self, problem: str) -> Status:
        """Return the status of a pod whose /health is late: down only where it shows no sign of life.

        A pod that is down for another reason stays down until it shows one.
        """
        before = self.pod.status
        last = max(self._event_at, self.links.answered(self.pod))
        is_down = before.healthy is False and not before.is_late
        if is_down and (before.refuses or last <= self._down_at):
            return replace(before, reason=problem)
        healthy = True if self._was_well else None
        if self._failures >= FAILURES and self.clock() - last > SIGN_SECONDS:
            healthy = False
        return replace(before, healthy=healthy, reason=problem, is_late=True)

    def _note_start(self, metrics: bytes) -> bool:
        """Record the engine's start time; a later one than before is a restart.

        Return whether both start times are known: then no other sign of a restart is needed.
        """
        samples = samples_of(metrics, START_TIME)
        starts = [value for name, _, value in samples if name == START_TIME and value < math.inf]
        before, self._started = self._started, max([self._started, *starts])
        if before and self._started > before + LATER_SECONDS:
            seconds = self._started - before
            reason = f"the engine's process started {seconds:.1f} s after the previous one"
            self._restarted(reason)
        return bool(before and starts)

    def _doubt(self, reason: str, ranks: Sequence[Rank]) -> None:
        log.info("pod %s: restarted: %s", self.pod.id, reason)
        for rank in ranks:
            rank.engine_restarted(reason)

    def _restarted(self, reason: str) -> None:
        self._looks = 0
        self._doubt(reason, self.pod.ranks)
        self.links.ended(self.pod)

    async def _load(self) -> bytes:
        """Pass the engine's load to `observed`; return the page of metrics that has it, or the last."""
        page = b""
        pod = self.pod
        for path in ENGINES[pod.engine].metrics.paths:
            page = await self._get(path)
            ranks, first = len(pod.ranks), pod.first_rank
            seen = parse(pod.engine, page, ranks=ranks, first=first, at=self.clock())
            for rank, observed in seen.items():
                self.links.observed(self.pod.id, rank, observed)
            if seen:
                break
        return page

    async def _models(self, *, is_dated: bool) -> tuple[Sequence[str], frozenset[str]]:
        """Return the names that the engine serves, and the adapters among them."""
        before = self.pod.status.models, self.pod.status.adapters
        self._is_doubted = False
        self._named = _adapters(self.pod.ranks)
        self._listed_at = self.clock()
        listed = await self._read("/v1/models", ModelList)
        if listed is None:
            return before
        bases = self._bases
        self._bases = frozenset(one.id for one in listed.data if one.parent is None)
        if bases - self._bases and not is_dated:
            # Adapters come and go while an engine runs; its base models change only with a restart.
            self._restarted("it no longer serves a model that it served")
        told = dict.fromkeys(one.id for one in listed.data)
        names = tuple(_bounded(told))
        if left_out := len(told) - len(names):
            log.warning(
                "pod %s: %d names in /v1/models are left out: a name may have %d bytes, all names %d",
                self.pod.id, left_out, MOST_NAME_BYTES, MOST_NAMES_BYTES,
            )  # fmt: skip
        if not names:
            return before
        adapters = frozenset(one.id for one in listed.data if one.parent is not None)
        return names, adapters.intersection(names)

    async def _read(self, path: str, kind: type[Said]) -> Said | None:
        """Return what a page says; None if it is not there or says something else."""
        try:
            return msgspec.json.decode(await self._get(path), type=kind)
        except UNREADABLE:
            return None

    async def _get(self, path: str) -> bytes:
        answer = await self._ask(path)
        return answer.body if answer.status == 200 else b""

    def _refusal(self) -> str:
        refused = " and ".join(f"{path} answers {code}" for path, code in self._refused.items())
        return f"{refused}: {self.key.advice()}" if refused else ""

    async def _ask(self, path: str) -> Answer:
        """Ask for a page; once more if the file of the engine's key has another one by now."""
        try:
            status, body = await self._request(path)
            if status in REFUSALS and await self.key.read_again():
                status, body = await self._request(path)
        except (AnswerError, CutError, TimeoutError, UnreachableError) as error:
            return Answer(0, b"", error)
        # Few engines have the pages for sleep, so their refusal does not show that a page is missing.
        if status in REFUSALS and path not in PATHS:
            self._refused[path] = status
        else:
            self._refused.pop(path, None)
        return Answer(status, body)

    async def _request(self, path: str) -> tuple[int, bytes]:
        """Return the status and body of an answer; the body is empty where it is too long."""
        # No redirects: a pod must not make the router send requests to other hosts.
        return await self._connection.get(
            self.pod.address,
            path,
            await self.key.headers(),
            tls=self.tls,
            seconds=self.timeout,
            most=MOST_BYTES * -(-max(len(self.pod.ranks), 1) // 16),
        )


def _go_on(pausing: asyncio.Future[None]) -> None:
    if not pausing.done():
        pausing.set_result(None)


def _bounded(names: Iterable[str]) -> Iterator[str]:
    room = MOST_NAMES_BYTES
    for name in names:
        size = len(name.encode())
        if size <= min(room, MOST_NAME_BYTES):
            room -= size
            yield name


def _restarts(rank: Rank) -> int:
    return rank.counts().get("restarts", 0)


def _adapters(ranks: Iterable[Rank]) -> int:
    return sum(rank.adapters for rank in ranks)


def _problem(status: int, error: Exception | None) -> tuple[str, bool]:
    """Return what is wrong with an answer of /health, and whether it says no more than a late one."""
    if isinstance(error, TimeoutError):
        return "/health does not answer in time", True
    if error is not None:
        return str(error), isinstance(error, CutError)
    return "" if status == 200 else f"/health answers {status}", status in BUSY


def _is_refused(error: Exception | None) -> bool:
    return isinstance(error, UnreachableError) and isinstance(error.reason, ConnectionRefusedError)
