"""The colours of the stylesheet that the live page and the reports share: they can be read, and mean one thing."""

import json
import re
from pathlib import Path

import pytest

from warmpath.cli.console import TRUST
from warmpath.indexer.trust import Level
from warmpath.router.pages.listener import ASSETS

STYLE = ASSETS.joinpath("page.css").read_text(encoding="utf-8")
SCHEMES = dict(
    zip(
        ("light", "dark"),
        (
            dict(re.findall(r"--(\w+): (#\w{6})", one))
            for one in re.findall(r":root {(.*?)}", STYLE, re.DOTALL)
        ),
        strict=True,
    )
)
DASHBOARD = Path(__file__).parents[3] / "deploy" / "monitoring" / "dashboard.json"
COLOURS = {
    "good": ("green", "green"),
    "doubt": ("orange", "yellow"),
    "bad": ("red", "red"),
    "gray": ("gray", "dim"),
}
"""Colours of the stylesheet, as the dashboard and the terminal name them."""


@pytest.mark.parametrize("scheme", SCHEMES)
def test_texts_stand_out_from_their_ground(scheme: str) -> None:
    """WCAG 2.2, 1.4.3: a contrast of 4.5 at least."""
    colours = SCHEMES[scheme]
    for name in colours.keys() - {"ground", "raised", "line"}:
        for under in ("ground", "raised"):
            assert _contrast(colours[name], colours[under]) >= 4.5, (name, under)
    # A prompt is painted with at most this share of the colour.
    [most] = [
        int(held)
        for held in re.findall(r"`\$\{10 \+ \((\d+) \*", ASSETS.joinpath("explain.js").read_text())
    ]
    painted = _mixed(colours["warm"], colours["raised"], (10 + most) / 100)
    assert _contrast(colours["ink"], painted) >= 4.5


def test_trust_has_the_same_colour_on_the_page_on_the_dashboard_and_in_a_terminal() -> None:
    rules = re.findall(r"([^{}\n]+) { color: var\(--(\w+)\); }", STYLE)
    page = {name: colour for names, colour in rules for name in re.findall(r"\.(\w+)", names)}
    [panel] = [
        one
        for one in json.loads(DASHBOARD.read_text())["panels"]
        if one["title"] == "Ranks by trust"
    ]
    dashboard = {
        one["matcher"]["options"]: one["properties"][0]["value"]["fixedColor"]
        for one in panel["fieldConfig"]["overrides"]
    }
    for level in Level:
        assert COLOURS[page[level]] == (dashboard[level], TRUST[level])


def _mixed(first: str, second: str, share: float) -> str:
    pairs = zip(_parts(first), _parts(second), strict=True)
    return "#" + "".join(f"{round(share * a + (1 - share) * b):02x}" for a, b in pairs)


def _parts(colour: str) -> list[int]:
    return [int(colour[at : at + 2], 16) for at in (1, 3, 5)]


def _contrast(first: str, second: str) -> float:
    lights = sorted((_luminance(first), _luminance(second)))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def _luminance(colour: str) -> float:
    parts = [part / 255 for part in _parts(colour)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
