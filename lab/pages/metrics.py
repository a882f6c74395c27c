"""Prints docs/reference/metrics.md, made of the declared metrics (`make docs`)."""

import sys

from warmpath.router.metrics.declared import ROOMS, Declared

BEGINNING = """# Metrics

The router's `/metrics` on `server.metrics-listen` has these, in Prometheus' text format or, for scrapers
that ask for it, in OpenMetrics with [exemplars](tracing-and-live-page.md#exemplars). `make docs` writes
this page from [`router/metrics/declared.py`](../../router/metrics/declared.py).
[Operations](../guides/operate.md) has the alerts and the dashboard that use them.

A metric of a part that the configuration does not ask for (the queue, the shared index) is missing.
Counters grow from the router's start. Labels have few values: pods, ranks, models and classes that are
known, and lists in the code.
"""


def page() -> str:
    """Return the page."""
    parts = [BEGINNING]
    for room, metrics in ROOMS.items():
        rows = "".join(_row(name, one) for name, one in metrics.items())
        parts.append(f"\n## {room}\n\n| metric | labels | |\n| --- | --- | --- |\n{rows}")
    return "".join(parts)


def _row(name: str, one: Declared) -> str:
    suffix = "_total" if one.kind == "counter" else ""
    labels = ", ".join(f"`{label}`" for label in one.labels)
    kind = " (histogram)" if one.kind == "histogram" else ""
    return f"| `warmpath_{name}{suffix}`{kind} | {labels} | {one.text} |\n"


if __name__ == "__main__":
    sys.stdout.write(page())
