"""Prints docs/reference/metrics.md, made of the declared metrics (`make docs`)."""

import sys

from warmpath.router.metrics.declared import ROOMS, Declared

BEGINNING = """# Metrics

This page lists every metric of the router's `/metrics` on `server.metrics-listen`, with its labels in
parentheses. [Operations](../guides/operate.md) has the alerts and the dashboard.

- The format is Prometheus' text format, or OpenMetrics with
  [exemplars](tracing-and-live-page.md#exemplars) if the scraper asks for it.
- A part that is not configured (the queue, the shared index) has no metrics.
- Counters (`_total`) start at 0 with the router.

`make docs` writes this page from [`router/metrics/declared.py`](../../router/metrics/declared.py).
"""


def page() -> str:
    """Return the page."""
    parts = [BEGINNING]
    for room, metrics in ROOMS.items():
        rows = "".join(_row(name, one) for name, one in metrics.items())
        parts.append(f"\n## {room}\n\n| metric | meaning |\n| --- | --- |\n{rows}")
    return "".join(parts)


def _row(name: str, one: Declared) -> str:
    suffix = "_total" if one.kind == "counter" else ""
    labels = f" ({', '.join(one.labels)})" if one.labels else ""
    kind = ", histogram" if one.kind == "histogram" else ""
    return f"| `warmpath_{name}{suffix}`{labels}{kind} | {one.text} |\n"


if __name__ == "__main__":
    sys.stdout.write(page())
