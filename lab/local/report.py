"""Writes reports: one HTML page with its plots inline. `write_report` writes the demo's."""

import html
import io
import os
import platform
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from warmpath.cli.version import commit
from warmpath.lab.local.measure import Served
from warmpath.process.command_line import version

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<style>
:root {{
  --ink: #1d1b19; --soft: #5d5750; --line: #d8d3cc; --ground: #fff; --raised: #f6f4f1; --doubt: #8a5a00;
}}
@media (prefers-color-scheme: dark) {{
  :root {{
    --ink: #ece9e4; --soft: #b3ada4; --line: #45413b; --ground: #191817; --raised: #23211f;
    --doubt: #f0bf5a;
  }}
}}
* {{ box-sizing: border-box }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 0 auto; padding: 1rem;
  background: var(--ground); color: var(--ink) }}
h1 {{ font-size: 1.5rem; margin: .5rem 0 }} h2 {{ font-size: 1.2rem; margin: 1.5rem 0 .5rem }}
p {{ max-width: 48rem }}
.warning {{ border-left: 4px solid var(--doubt); background: var(--raised); padding: .5rem .8rem }}
.warning b {{ color: var(--doubt) }}
.wide {{ overflow-x: auto }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums }}
th, td {{ padding: .3rem .5rem; text-align: right; white-space: nowrap }}
td {{ border-top: 1px solid var(--line) }}
td:first-child, th:first-child {{ text-align: left; padding-left: 0;
  position: sticky; left: 0; background: var(--ground) }}
@media (max-width: 40rem) {{ table {{ font-size: .85rem }} th, td {{ padding: .3rem .5rem }} }}
.plots {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr));
  gap: 1.2rem 2rem; margin: 1.2rem 0 }}
figure {{ margin: 1.2rem 0 }} .plots figure {{ margin: 0 }}
figcaption {{ font-weight: 600; margin-bottom: .3rem }}
svg {{ display: block; width: 100%; max-width: 40rem; height: auto }}
dt {{ color: var(--soft); font-size: .9rem }} dd {{ margin: 0 0 .5rem; overflow-wrap: anywhere }}
</style></head><body>
<h1>{title}</h1>
{body}
</body></html>
"""

INK = "#010203"
"""The colour that plots draw their text and axes in; the page has its own in its place."""
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "warmpath",
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    # Colours that stand out from a white ground and from a dark one; the strokes differ too.
    "axes.prop_cycle": cycler(
        color=("#d55e00", "#2b7fc3", "#139a74", "#b9629a", "#8c7a2e", "#7f7f7f"),
        linestyle=(
            "-",
            (0, (5, 1.5)),
            (0, (1.5, 1.2)),
            (0, (6, 2, 1.5, 2)),
            (0, (9, 3)),
            (0, (3, 3)),
        ),
    ),
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK
    ),
    "grid.color": INK,
    "grid.alpha": 0.2,
}
"""What matplotlib is told."""


@dataclass(frozen=True, slots=True)
class Story:
    """The sentences and facts of a demo's page."""

    conclusions: Sequence[str]
    warnings: Sequence[str]
    setting: str
    made: Mapping[str, str]
    """How the page was made: version, options and so on, by their names."""
    ceilings: Sequence[tuple[float, float]]
    """Modelled seconds, and the hit ratio so far of one cache that never evicts."""
    killed: float | None
    """Modelled seconds after which the first pod was killed."""


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
            *(paragraph(text) for text in story.conclusions),
            table(rows),
            paragraph(story.setting),
            plots(
                plot(
                    "share of requests with their first token by then",
                    lambda axes: _ttft(axes, served),
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
    page = PAGE.format(title=html.escape(title), body="\n".join(parts))
    path.write_text(page, encoding="utf-8")


def heading(text: str) -> str:
    """Return a heading as HTML."""
    return f"<h2>{html.escape(text)}</h2>"


def paragraph(text: str) -> str:
    """Return a paragraph as HTML."""
    return f"<p>{html.escape(text)}</p>"


def warning(text: str) -> str:
    """Return a warning as HTML."""
    return f'<p class="warning" role="note"><b>Note:</b> {html.escape(text)}</p>'


def facts(named: Mapping[str, str]) -> str:
    """Return facts and their names as HTML."""
    items = "".join(
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>"
        for name, value in named.items()
    )
    return f"<dl>{items}</dl>"


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
        "command": shlex.join(command),
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
    return f'<div class="plots">{"".join(parts)}</div>'


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
    text = text[text.index("<svg") :].replace(INK, "currentColor")
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
    axes.set_xlabel("time to first token, modelled seconds")
    axes.set_ylabel("share of requests")


def _hits(axes: Axes, served: Mapping[str, Sequence[Served]], story: Story) -> None:
    for name, answers in served.items():
        times, ratios = [], []
        prompt = cached = 0
        for one in sorted(answers, key=lambda one: one.arrived):
            prompt += one.prompt_tokens
            cached += one.cached_tokens
            times.append(one.arrived)
            ratios.append(cached / prompt)
        axes.plot(times, ratios, label=name)
    axes.plot(
        *zip(*story.ceilings, strict=True), label="ceiling", color=INK, linestyle="-", linewidth=1
    )
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
