"""Prints docs/reference/metrics.md, made of the declared metrics (`make docs`)."""

import sys

from warmpath.process.metric import Declared
from warmpath.publisher import metrics as publisher
from warmpath.router.metrics.declared import DECLARED, ROOMS
from warmpath.router.metrics.llmd import POOL, RENAMED, Renamed

BEGINNING = """# Metrics

This page lists every metric of the router's `/metrics` on `server.metrics-listen` and, at its end, every
one of a publisher, with their labels in parentheses. [Operations](../guides/operate.md) has the alerts
and the dashboard.

- The format is Prometheus' text format, or OpenMetrics with
  [exemplars](tracing-and-live-page.md#exemplars) if the scraper asks for it.
- A part that is not configured (the queue, the shared index) has no metrics.
- Counters (`_total`) start at 0 with the router.

`make docs` writes this page from [`router/metrics/declared.py`](../../router/metrics/declared.py) and
[`publisher/metrics.py`](../../publisher/metrics.py).
"""


LLMD = """
## Under llm-d's names

With [`llmd.pool`](config.md#llmd), the name of the pool, `/metrics` also has these names, the current
one of llm-d's picker first and the one that it calls deprecated after it
([what is missing](../guides/coming-from.md#llm-d-its-metrics)). Samples of equal labels are added up.

| llm-d's metric | here |
| --- | --- |
"""


def page() -> str:
    """Return the page."""
    parts = [BEGINNING]
    rooms = {
        **{
            room: {f"warmpath_{name}": one for name, one in of.items()}
            for room, of in ROOMS.items()
        },
        "A publisher, on its `--metrics-listen`": {
            f"warmpath_publisher_{name}": one for name, one in publisher.DECLARED.items()
        },
    }
    for room, metrics in rooms.items():
        rows = "".join(_row(name, one) for name, one in metrics.items())
        parts.append(f"\n## {room}\n\n| metric | meaning |\n| --- | --- |\n{rows}")
    return "".join([*parts, LLMD, *map(_renamed, RENAMED)])


def _renamed(one: Renamed) -> str:
    suffix = "_total" if DECLARED[one.ours].kind == "counter" else ""
    names = ", ".join(f"`{name}{suffix}`" for name in one.names)
    labels = f" ({', '.join(one.labels)})" if one.labels else ""
    how = "the mean of " if one.is_mean else ""
    where = "".join(f", {label} {' or '.join(of)}" for label, of in one.where.items())
    by = ", ".join(dict.fromkeys(at for at in one.labels.values() if at != POOL))
    return f"| {names}{labels} | {how}`warmpath_{one.ours}{suffix}`{where}{by and f', by {by}'} |\n"


def _row(name: str, one: Declared) -> str:
    suffix = "_total" if one.kind == "counter" else ""
    labels = f" ({', '.join(one.labels)})" if one.labels else ""
    kind = ", histogram" if one.kind == "histogram" else ""
    return f"| `{name}{suffix}`{labels}{kind} | {one.text} |\n"


if __name__ == "__main__":
    sys.stdout.write(page())
