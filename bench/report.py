"""Reports: one HTML page, its plots inline. `write_report` makes the demo's."""

import html
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.measure import Served

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }}
table {{ border-collapse: collapse }} th, td {{ padding: .3rem .8rem; text-align: right }}
th {{ border-bottom: 1px solid #888 }} td:first-child, th:first-child {{ text-align: left }}
svg {{ max-width: 100%; height: auto }}
</style></head><body>
<h1>{title}</h1>
{body}
</body></html>
"""


def write_report(
    path: Path,
    rows: Sequence[Sequence[str]],
    served: Mapping[str, Sequence[Served]],
    *,
    pods: int,
    conclusion: str,
    setting: str,
) -> None:
    """Write the page; the first of `rows` is the table's head."""
    write_page(
        path,
        "warmpath demo",
        [
            paragraph(conclusion),
            paragraph(setting),
            table(rows),
            plot("time to first token, seconds", lambda axes: _ttft(axes, served)),
            plot("prefix hit ratio so far", lambda axes: _hits(axes, served)),
            plot("prompt tokens computed by each pod", lambda axes: _pods(axes, served, pods)),
        ],
    )


def write_page(path: Path, title: str, parts: Sequence[str]) -> None:
    """Write a page of parts that are HTML."""
    path.parent.mkdir(parents=True, exist_ok=True)
    page = PAGE.format(title=html.escape(title), body="\n".join(parts))
    path.write_text(page, encoding="utf-8")


def heading(text: str) -> str:
    """Return a heading as HTML."""
    return f"<h2>{html.escape(text)}</h2>"


def paragraph(text: str) -> str:
    """Return a text as HTML."""
    return f"<p>{html.escape(text)}</p>"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table as HTML; the first of `rows` is its head."""
    lines = []
    for number, row in enumerate(rows):
        cell = "td" if number else "th"
        cells = "".join(f"<{cell}>{html.escape(value)}</{cell}>" for value in row)
        lines.append(f"<tr>{cells}</tr>")
    return f"<table>{''.join(lines)}</table>"


def plot(title: str, draw: Callable[[Axes], None], *, height: float = 3.2) -> str:
    """Return a plot as SVG; `height` is in inches. The same numbers make the same plot."""
    mpl.rcParams["svg.hashsalt"] = "warmpath"
    figure = Figure(figsize=(8, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title)
    axes.grid(alpha=0.3)
    draw(axes)
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _ttft(axes: Axes, served: Mapping[str, Sequence[Served]]) -> None:
    for name, answers in served.items():
        times = sorted(one.first_token for one in answers)
        shares = [(rank + 1) / len(times) for rank in range(len(times))]
        axes.step(times, shares, where="post", label=name)
    axes.set_xscale("log")
    axes.set_ylabel("share of requests")


def _hits(axes: Axes, served: Mapping[str, Sequence[Served]]) -> None:
    for name, answers in served.items():
        times, ratios = [], []
        prompt = cached = 0
        for one in sorted(answers, key=lambda one: one.arrived):
            prompt += one.prompt_tokens
            cached += one.cached_tokens
            times.append(one.arrived)
            ratios.append(cached / prompt)
        axes.plot(times, ratios, label=name)
    axes.set_xlabel("modelled seconds")


def _pods(axes: Axes, served: Mapping[str, Sequence[Served]], pods: int) -> None:
    width = 0.8 / max(len(served), 1)
    for position, (name, answers) in enumerate(served.items()):
        computed = [0] * pods
        for one in answers:
            computed[one.pod] += one.prompt_tokens - one.cached_tokens
        axes.bar([pod + position * width for pod in range(pods)], computed, width, label=name)
    axes.set_xticks([pod + 0.4 - width / 2 for pod in range(pods)])
    axes.set_xticklabels([f"pod-{pod + 1}" for pod in range(pods)])
