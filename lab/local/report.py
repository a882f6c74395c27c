"""Writes reports: one HTML page with its plots inline, in the live page's style.

`write_report` writes the demo's.
"""

import html
import io
import os
import platform
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from warmpath.cli.version import commit
from warmpath.lab.local.measure import Served, sessions
from warmpath.process.command_line import version
from warmpath.router.pages.listener import ASSETS
from warmpath.scorer.policy import DEFAULT

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<style>{style}</style></head><body class="report">
<header><h1>{title}</h1></header>
{body}
<script>{script}</script></body></html>
"""

INK = "#010203"
"""The colour that plots draw their text and axes in; the page has its own in its place."""
COLOURS = {
    INK: "currentColor",
    "#010204": "var(--warm)",
    "#010205": "var(--cool)",
    "#010206": "var(--disk)",
    "#010207": "var(--good)",
    "#010208": "var(--doubt)",
    "#010209": "var(--gray)",
}
"""The page's colours, light or dark (page.css), by those that plots are drawn in."""
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 2, 1.5, 2)), (0, (9, 3)), (0, (3, 3)))
"""A stroke for each colour, so that lines differ without them."""
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "warmpath",
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": cycler(color=[*COLOURS][1:], linestyle=DASHES),
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK
    ),
    "grid.color": INK,
    "grid.alpha": 0.2,
}
"""The settings of matplotlib."""


@dataclass(frozen=True, slots=True)
class Story:
    """The sentences and facts of a demo's page."""

    conclusions: Sequence[str]
    warnings: Sequence[str]
    setting: str
    made: Mapping[str, str]
    """How the page was made: version, options and so on, by their names."""
    ceiling: float
    """The hit ratio of one cache that never evicts."""
    killed: float | None
    """Modelled seconds after which the first pod was killed; None: it was not."""


def write_report(
    path: Path,
    rows: Sequence[Sequence[str]],
    served: Mapping[str, Sequence[Served]],
    *,
    pods: int,
    story: Story,
) -> None:
    """Write the page; the first of `rows` is the table's head."""
    write_page(
        path,
        "warmpath demo",
        [
            *(warning(text) for text in story.warnings),
            *(paragraph(text, "" if at else "lead") for at, text in enumerate(story.conclusions)),
            table(rows),
            paragraph(story.setting),
            plots(
                plot(
                    "share of agents' sessions that had ended by then",
                    lambda axes: _shares(axes, "duration", _durations(served)),
                ),
                plot(
                    "share of agents' requests with their first token by then",
                    lambda axes: _shares(axes, TTFT, _first_tokens(served, of_agents=True)),
                ),
                plot(
                    "share of chats' requests with their first token by then",
                    lambda axes: _shares(axes, TTFT, _first_tokens(served, of_agents=False)),
                ),
                plot("prefix hit ratio so far", lambda axes: _hits(axes, served, story)),
                plot(
                    "prompt tokens that each pod computed", lambda axes: _pods(axes, served, pods)
                ),
            ),
            heading("How this page was made"),
            facts(story.made),
        ],
    )


def write_page(path: Path, title: str, parts: Sequence[str]) -> None:
    """Write a page; its parts are HTML."""
    path.parent.mkdir(parents=True, exist_ok=True)
    style, script = (ASSETS.joinpath(one).read_text("utf-8") for one in ("page.css", "copy.js"))
    page = PAGE.format(title=html.escape(title), style=style, body="\n".join(parts), script=script)
    path.write_text(page, encoding="utf-8")


def heading(text: str) -> str:
    """Return a heading as HTML."""
    return f"<h2>{html.escape(text)}</h2>"


def paragraph(text: str, kind: str = "") -> str:
    """Return a paragraph as HTML; `kind` is a class of page.css."""
    return f'<p class="{kind}">{html.escape(text)}</p>'


def warning(text: str) -> str:
    """Return a warning as HTML."""
    note = f"<p><strong>Note:</strong> {html.escape(text)}</p>"
    return f'<div class="notice degraded" role="note">{note}</div>'


COMMAND = "command"
"""The name of the fact that is a command, which a button copies."""


def facts(named: Mapping[str, str]) -> str:
    """Return facts and their names as HTML."""
    items = "".join(
        f"<dt>{html.escape(name)}</dt><dd>{_fact(name, html.escape(value))}</dd>"
        for name, value in named.items()
    )
    return f'<dl class="facts">{items}</dl>'


def _fact(name: str, value: str) -> str:
    if name != COMMAND:
        return value
    button = '<button type="button" class="copy">Copy</button>'
    return f'<span class="copyable"><code>{value}</code>{button}</span>'


def provenance(command: Sequence[str], options: Mapping[str, object]) -> dict[str, str]:
    """Return the facts of how a page was made, by their names.

    `command` is the command line; `options` are all values, defaults included, by their names.
    """
    told = (
        f"{name.replace('_', '-')} {_plain(value)}"
        for name, value in options.items()
        if value is not None and value != ""
    )
    built = f", commit {commit()[:12]}" if commit() else ""
    return {
        "version": f"warmpath {version()}{built}",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        COMMAND: shlex.join(command),
        "options, defaults included": ", ".join(told),
    }


def _plain(value: object) -> str:
    """Return the value of an option as people write it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return ",".join(map(_plain, value))
    return str(value)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table as HTML; the first of `rows` is its head."""
    lines = []
    for number, row in enumerate(rows):
        begin, end = ("<td>", "</td>") if number else ('<th scope="col">', "</th>")
        cells = "".join(f"{begin}{html.escape(value)}{end}" for value in row)
        lines.append(f"<tr>{cells}</tr>")
    # Keys scroll a table that is wider than a phone only if it can have the focus.
    label = html.escape(rows[0][0], quote=True)
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="by {label}">'
        f"<table>{''.join(lines)}</table></div>"
    )


def plots(*parts: str) -> str:
    """Return plots side by side, as far as there is room, as HTML."""
    return f'<div class="charts">{"".join(parts)}</div>'


def plot(title: str, draw: Callable[[Axes], None], *, height: float = 3.6) -> str:
    """Return a plot with its title as HTML; `height` is in inches.

    The same numbers make the same plot.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5.6, height), layout="constrained")
        axes = figure.add_subplot()
        axes.grid(visible=True)
        axes.set_axisbelow(True)
        draw(axes)
        if axes.get_legend_handles_labels()[0]:
            figure.legend(loc="outside lower center", ncols=2, frameon=False)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    for drawn, shown in COLOURS.items():
        text = text.replace(drawn, shown)
    named = html.escape(title, quote=True)
    text = text.replace("<svg", f'<svg role="img" aria-label="{named}"', 1)
    return f"<figure><figcaption>{html.escape(title)}</figcaption>{text}</figure>"


def logarithmic(axes: Axes, which: Literal["x", "y"]) -> None:
    """Make an axis logarithmic, its numbers plain: 0.5, 1, 2, 5, 10."""
    axes.set(**{f"{which}scale": "log"})
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:,.12g}"))
    axis.set_minor_locator(NullLocator())


FIXED = {DEFAULT: 0, "round-robin": 5}
"""Places of policies in COLOURS and DASHES: those that the live page's charts give them."""


def strokes(policies: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the colour and the stroke of each policy's line, for at most six policies."""
    names = list(policies)
    fixed = {name: place for name, place in FIXED.items() if name in names}
    free = (place for place in range(len(DASHES)) if place not in fixed.values())
    places = {name: fixed[name] if name in fixed else next(free) for name in names}
    return {
        name: {"color": f"C{place}", "linestyle": DASHES[place]} for name, place in places.items()
    }


def pod_bars(axes: Axes, pods: Mapping[str, Sequence[float]]) -> None:
    """Draw a bar for each policy's number of each pod; a pod's bars stand side by side."""
    width, drawn = 0.8 / max(len(pods), 1), strokes(pods)
    for position, (name, numbers) in enumerate(pods.items()):
        offset = (position - (len(pods) - 1) / 2) * width
        places = [pod + offset for pod in range(len(numbers))]
        axes.bar(places, numbers, width, label=name, color=drawn[name]["color"])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


TTFT = "time to first token"


def _durations(served: Mapping[str, Sequence[Served]]) -> dict[str, list[float]]:
    return {name: [one.seconds for one in sessions(answers)] for name, answers in served.items()}


def _first_tokens(
    served: Mapping[str, Sequence[Served]], *, of_agents: bool
) -> dict[str, list[float]]:
    return {
        name: [one.first_token for one in answers if bool(one.session) is of_agents]
        for name, answers in served.items()
    }


def _shares(axes: Axes, what: str, seconds: Mapping[str, Sequence[float]]) -> None:
    drawn = strokes(seconds)
    for name, unordered in seconds.items():
        times = sorted(unordered)
        shares = [(rank + 1) / len(times) for rank in range(len(times))]
        axes.step(times, shares, where="post", label=name, **drawn[name])
    if what == TTFT:
        logarithmic(axes, "x")
    axes.set_xlabel(f"{what}, modelled seconds")
    axes.set_ylabel("share")


def _hits(axes: Axes, served: Mapping[str, Sequence[Served]], story: Story) -> None:
    drawn = strokes(served)
    for name, answers in served.items():
        times, ratios = [], []
        prompt = cached = 0
        for one in sorted(answers, key=lambda one: one.arrived):
            prompt += one.prompt_tokens
            cached += one.cached_tokens
            times.append(one.arrived)
            ratios.append(cached / prompt)
        axes.plot(times, ratios, label=name, **drawn[name])
    axes.axhline(story.ceiling, label="ceiling", color=INK, linewidth=1)
    if story.killed is not None:
        axes.axvline(story.killed, color=INK, linestyle=":", label="pod-1 killed")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("arrival, modelled seconds")
    axes.set_ylabel("share of prompt tokens")


def _pods(axes: Axes, served: Mapping[str, Sequence[Served]], pods: int) -> None:
    found = {name: [0] * pods for name in served}
    for name, answers in served.items():
        for one in answers:
            found[name][one.pod] += one.prompt_tokens - one.cached_tokens
    pod_bars(axes, found)
    axes.set_xticks(range(pods), [f"pod-{pod + 1}" for pod in range(pods)])
    axes.set_ylabel("tokens, millions")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value / 1e6:g}"))
