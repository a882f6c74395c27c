"""Reads engines' loads from their metrics.

Names and labels are in the engines' descriptions (`indexer.engines`); beside them TensorRT-LLM has
the iteration statistics that `trtllm-serve` returns as JSON at /metrics, its Prometheus page being at
/prometheus/metrics. The Gateway API Inference Extension reads the same metrics (its "Model Server
Protocol").

Pages are searched for a few lines, not parsed: `prometheus_client` takes 0.3 s for a page of 1 MB, and
there may be a hundred pods to read every two seconds.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import msgspec

from warmpath.indexer.engines.kind import MetricNames
from warmpath.indexer.engines.table import ENGINES
from warmpath.process.bytes import UNREADABLE

MOST_REQUESTS = 1_000_000
"""Most credible requests of a rank; a higher figure counts as an error."""
FULL = 1.05
"""Highest credible KV usage, with rounding."""


@dataclass(frozen=True, slots=True)
class Observed:
    """A rank's load, as observed in its metrics or by a gateway."""

    running: int
    """Requests in the engine's batch."""
    waiting: int
    """Requests in the engine's queue."""
    kv_usage: float
    """Share of the KV cache that requests hold, 0 to 1; 0 if not given."""
    at: float
    """Time of the observation, in seconds of the router's clock."""
    bad: tuple[str, ...] = ()
    """The figures that are missing or impossible: `running`, `waiting`, `kv_usage`. They are 0 here."""

    @property
    def requests(self) -> int:
        """All requests that the engine has."""
        return self.running + self.waiting


def problem_of(
    *, running: int, waiting: int, kv_usage: float, age: float
) -> tuple[str, str] | None:
    """Return the field of an impossible observation, `age` seconds old, and its problem; None if none.

    The field is empty if the sum of both kinds of requests is impossible.
    """
    if running < 0 or waiting < 0:
        field, figure = ("running", running) if running < 0 else ("waiting", waiting)
        return field, f"is {figure}, not 0 or more"
    if not 0 <= kv_usage <= 1:
        return "kv_usage", f"is {kv_usage}, not 0 to 1"
    if not 0 <= age < math.inf:
        return "age", f"is {age} s, not 0 or more"
    if running + waiting > MOST_REQUESTS:
        return "", f"has more than {MOST_REQUESTS} running and waiting requests"
    return None


LONGEST = 40
"""A number with this many characters or more counts as an error; engines write none so long."""
LINE = re.compile(
    # Nothing is tried anew, so that a malformed line takes no longer than any other. Groups are atomic,
    # not possessive: those match too much before Python 3.11.5 (CPython's issue 106052).
    rb'([\w:]++)(?:\{((?>(?:[^"}\n]++|"(?>(?:[^"\\\n]++|\\.)*)")*))\})?[ \t]*+([^ \t\r\n]{0,40})'
)
MOST_LINES, MOST_LINE_BYTES = 1024, 16 << 10
"""Most lines of a metric (or most iterations, the last ones) and longest line that are read, which takes
milliseconds. vLLM's longest line has 2 KB."""
LABEL = re.compile(rb'(\w+)="((?>(?:[^"\\]++|\\.)*))"')
CACHE_CONFIG = b"vllm:cache_config_info{"
CAPACITY = re.compile(rb'[^}]*\bnum_gpu_blocks="(\d{1,10})"')

Figures = dict[str, Any]
"""The values of `running`, `waiting` and `kv_usage` that a page has, not checked yet."""


def parse(
    engine: str, page: bytes, *, ranks: int, at: float, first: int = 0
) -> dict[int, Observed]:
    """Return the loads in a page of metrics, by rank from 0; the engine numbers ranks from `first`.

    The one rank of a pod has the requests of all engines of its page, unless `first` names one of them.
    An impossible or missing figure counts as 0, and is named in `Observed.bad`. A rank without any
    number of requests is left out; so are all of several ranks if the page does not distinguish ranks.
    Raises KeyError for an unknown engine.
    """
    names = ENGINES[engine].metrics
    is_json = page[:64].lstrip()[:1] in {b"[", b"{"}
    said = _statistics(page) if is_json else _series(names, page)
    seen = {rank: one for rank, figures in said.items() if (one := observe(figures, at))}
    if ranks > 1:
        told = range(first, first + ranks)
        return {
            rank - first: one for rank, one in seen.items() if rank is not None and rank in told
        }
    # Its page may number it by the pod's place in a larger deployment, or have several engines, among
    # which the pod's frontend spreads the requests itself.
    is_named = first and first in said
    engines = [one for rank, one in seen.items() if not is_named or rank == first]
    return {0: _together(engines)} if engines else {}


def lines(page: bytes, beginning: bytes) -> Iterator[bytes]:
    """Yield the lines of a page that start with `beginning` and have at most MOST_LINE_BYTES.

    A search for a few names takes a tenth of the time of a regular expression over the whole page.
    """
    after_break = b"\n" + beginning
    start = 0
    if not page.startswith(beginning):
        start = page.find(after_break) + 1
        if not start:
            return
    while True:
        stop = page.find(b"\n", start)
        stop = len(page) if stop < 0 else stop
        if stop - start <= MOST_LINE_BYTES:
            yield page[start:stop]
        start = page.find(after_break, stop) + 1
        if not start:
            return


def samples_of(page: bytes, beginning: bytes) -> Iterator[tuple[bytes, dict[bytes, bytes], float]]:
    """Yield the name, labels and value of the samples whose name starts with `beginning`.

    The value is infinity where it is not a number, or a negative one.
    """
    for line in islice(lines(page, beginning), MOST_LINES):
        if found := LINE.match(line):
            yield found[1], dict(LABEL.findall(found[2] or b"")), _number(found[3])


def cache_blocks(page: bytes) -> int:
    """Return how many blocks of a rank's cache a page of vLLM's says that it has; 0: it does not say."""
    found = CAPACITY.match(next(lines(page, CACHE_CONFIG), b""))
    # One of vLLM's blocks is the null block, which is never cached.
    return max(0, int(found[1]) - 1) if found else 0


def observe(figures: Mapping[str, object], at: float) -> Observed | None:
    """Return an observation, with 0 for bad figures; None if both numbers of requests are bad."""
    found = {
        "running": _figure(figures.get("running"), MOST_REQUESTS),
        "waiting": _figure(figures.get("waiting"), MOST_REQUESTS),
        "kv_usage": _figure(figures.get("kv_usage", 0.0), FULL),
    }
    running, waiting, kv_usage = found.values()
    if running is None and waiting is None:
        return None
    bad = tuple(name for name, figure in found.items() if figure is None)
    return Observed(int(running or 0), int(waiting or 0), min(kv_usage or 0.0, 1.0), at, bad)


def _together(engines: Sequence[Observed]) -> Observed:
    """Return the load of several engines as one: the sums of requests, the mean KV usage."""
    return Observed(
        min(sum(one.running for one in engines), MOST_REQUESTS),
        min(sum(one.waiting for one in engines), MOST_REQUESTS),
        sum(one.kv_usage for one in engines) / len(engines),
        engines[0].at,
        tuple(dict.fromkeys(name for one in engines for name in one.bad)),
    )


def _figure(value: object, most: float) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= most else None


def _series(names: MetricNames, page: bytes) -> dict[int | None, Figures]:
    kinds = {names.running: "running", names.waiting: "waiting"}
    kinds |= dict.fromkeys(names.kv_usage, "kv_usage")
    said: dict[int | None, Figures] = {}
    samples = chain.from_iterable(samples_of(page, name) for name in kinds)
    for name, labels, number in samples:
        kind = kinds.get(name)
        if not kind:
            continue
        if labels.get(b"priority"):
            # SGLang adds a line per priority; the line without a priority is the total.
            continue
        label = labels.get(names.rank_label)
        rank = int(label) if label and label.isdigit() and len(label) < 6 else None
        figures = said.setdefault(rank, {})
        # Several processes of a tensor-parallel group may report: the maximum counts, errors (inf) win.
        figures[kind] = max(number, figures.get(kind, 0.0))
    return said


def _number(text: bytes) -> float:
    """Return a number; infinity for text that is not a number, or a negative one."""
    try:
        number = float(text)
    except ValueError:
        return math.inf
    return number if number >= 0 and len(text) < LONGEST else math.inf


def _statistics(page: bytes) -> dict[int | None, Figures]:
    """Read TensorRT-LLM's statistics of its last iterations; the last one of each rank counts."""
    is_list = page.lstrip()[:1] == b"["
    try:
        raws = msgspec.json.decode(page, type=list[msgspec.Raw]) if is_list else [page]
        iterations = [msgspec.json.decode(raw) for raw in raws[-MOST_LINES:]]
    except UNREADABLE:
        return {}
    said: dict[int | None, Figures] = {}
    for iteration in iterations:
        if not isinstance(iteration, dict):
            continue
        figures: Figures = {
            "running": iteration.get("numActiveRequests"),
            "waiting": iteration.get("numQueuedRequests"),
        }
        cache = iteration.get("kvCacheStats")
        if isinstance(cache, dict):
            used, most = (
                _figure(cache.get(name), math.inf) for name in ("usedNumBlocks", "maxNumBlocks")
            )
            figures["kv_usage"] = used / most if used is not None and most else None
        rank = iteration.get("attentionDpRank")
        said[rank if type(rank) is int else None] = figures
    return said
