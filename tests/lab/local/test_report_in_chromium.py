"""The demo's page in a browser: wide, on a phone, light and dark, from one file."""

from pathlib import Path

import pytest

from tests.servers.chromium import MISSING, chromium
from warmpath.lab.local.measure import Served
from warmpath.lab.local.report import Story, write_report

GROUND = "getComputedStyle(document.body).backgroundColor"
STORY = Story(
    conclusions=["warmpath found 34% of all prompt tokens cached."],
    warnings=["This machine was too busy."],
    setting="12 sessions beside 60 requests.",
    made={"command": "warmpath demo --out /a/folder/with/a/long/name" * 9},
    ceiling=0.3,
    killed=0.5,
)
ROWS = [("policy", *(f"a-long-heading-{number}" for number in range(6))), ("warmpath", *"123456")]


def page(folder: Path) -> str:
    answers = [
        Served("s" * (at % 3), at, at % 2, 100, 50, 0.1, 1.0 + at, 2.0 + at, 0.01)
        for at in range(9)
    ]
    write_report(folder / "report.html", ROWS, {"warmpath": answers}, pods=2, story=STORY)
    return f"file://{folder}/report.html"


@pytest.mark.deep
@pytest.mark.skipif(bool(MISSING), reason=MISSING)
async def test_it_fits_a_phone_and_follows_the_colours_asked_for(tmp_path: Path) -> None:
    url = page(tmp_path)
    grounds: dict[tuple[int, str], str] = {}
    async with chromium() as tab:
        for width, scheme in ((1280, "light"), (1280, "dark"), (420, "light"), (420, "dark")):
            await tab.size(width)
            await tab.scheme(scheme)
            await tab.open(url)
            await tab.until("document.readyState == 'complete' && !!document.querySelector('dl')")
            assert await tab.run("document.documentElement.scrollWidth") <= width
            shown = await tab.run("document.querySelector('[role=note]').innerText")
            assert shown == "Note: This machine was too busy."
            grounds[width, scheme] = await tab.run(GROUND)
            # What is drawn has the colour of the text.
            ink = await tab.run("getComputedStyle(document.body).color")
            text = "getComputedStyle(document.querySelector('svg #text_1 g')).fill"
            assert await tab.run(text) == ink
        await tab.run("document.querySelector('.copy').click()")
        said = await tab.until("document.querySelector('.said')?.innerText")
        assert said.split() == f"Copied: {STORY.made['command']}".split()
        assert tab.complaints == []
        assert set(tab.asked) == {url}
    assert grounds[420, "light"] == grounds[1280, "light"] != grounds[1280, "dark"]
    assert grounds[420, "dark"] == grounds[1280, "dark"]
