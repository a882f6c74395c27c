"""Writes reports: one HTML page with its plots inline. `write_report` writes the demo's."""

import html
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from router.commands.local.measure import Served

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
    """Write a page; its parts are HTML."""
    path.parent.mkdir(parents=True, exist_ok=True)
    page = PAGE.format(title=html.escape(title), body="\n".join(parts))
    path.write_text(page, encoding="utf-8")


def heading(text: str) -> str:
    """Return a heading as HTML."""
    return f"<h2>{html.escape(text)}</h2>"


def paragraph(text: str) -> str:
    """Return a paragraph as HTML."""
    return f"<p>{html.escape(text)}</p>"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table as HTML; the first of `rows` is its head."""
    lines = []
    for number, row in enumerate(rows):
        cell = "td" if number else "th"
        cells = "".join(f"<{cell}>{html.escape(value)}</{cell}>" for value in row)
        lines.append(f"<tr>{cells}</tr>")
    return f"<table>{''.join(lines)}</table>"


def plot(title: str, draw: Callable[[Axes], None], *, height: float = 3.8) -> str:
    """Return a plot as SVG; `height` is in inches. The same numbers make the same plot."""
    mpl.rcParams["svg.hashsalt"] = "warmpath"
    figure = Figure(figsize=(8, height), layout="constrained")
    # A title of the figure, not of the axes: long names shift the axes far to the right.
    figure.suptitle(title)
    axes = figure.add_subplot()
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    draw(axes)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside lower center", ncols=3, frameon=False)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def logarithmic(axes: Axes, which: Literal["x", "y"]) -> None:
    """Make an axis logarithmic, its numbers plain: 0.5, 1, 2, 5, 10."""
    axes.set(**{f"{which}scale": "log"})
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:,.12g}"))
    axis.set_minor_locator(NullLocator())


def pod_bars(axes: Axes, pods: Mapping[str, Sequence[float]]) -> None:
    """Draw a bar for each policy's number of each pod; a pod's bars stand side by side."""
    width = 0.8 / max(len(pods), 1)
    for position, (name, numbers) in enumerate(pods.items()):
        offset = (position - (len(pods) - 1) / 2) * width
        axes.bar([pod + offset for pod in range(len(numbers))], numbers, width, label=name)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _ttft(axes: Axes, served: Mapping[str, Sequence[Served]]) -> None:
    for name, answers in served.items():
        times = sorted(one.first_token for one in answers)
        shares = [(rank + 1) / len(times) for rank in range(len(times))]
        axes.step(times, shares, where="post", label=name)
    logarithmic(axes, "x")
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
    found = {name: [0] * pods for name in served}
    for name, answers in served.items():
        for one in answers:
            found[name][one.pod] += one.prompt_tokens - one.cached_tokens
    pod_bars(axes, found)
    axes.set_xticks(range(pods), [f"pod-{pod + 1}" for pod in range(pods)])
