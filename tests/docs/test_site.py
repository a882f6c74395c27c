"""The site of the pages: each page is in its navigation; it builds without a network, and asks no other host."""

import asyncio
import os
import re
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.deploy.manifests import locked
from tests.docs.test_pages import PAGES, ROOT
from tests.servers.chromium import MISSING, Tab, chromium

SPHINX = ROOT / ".venv" / "site"
OFFLINE = """
import sys
def refuse(event, details):
    if event in {"socket.connect", "socket.getaddrinfo"}:
        raise PermissionError(f"{event}: {details}")
sys.addaudithook(refuse)
from sphinx.cmd.build import main
sys.exit(main(sys.argv[1:]))
"""


def test_the_navigation_has_every_page_once() -> None:
    sections = tomllib.loads((ROOT / "docs" / "site" / "navigation.toml").read_text())["sections"]
    listed = [page for section in sections for page in section["pages"].values()]
    assert sorted(listed) == sorted(str(page.relative_to(ROOT)) for page in PAGES)


def test_make_has_sphinx_installed_before_the_deep_tests_which_skip_without_it() -> None:
    words = ["make", "--dry-run", "--print-data-base", "help"]
    rules = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    [deep] = re.findall(r"^test-deep: .*$", rules, re.MULTILINE)
    assert ".venv/site/.done" in deep


def test_the_packages_that_build_it_are_pinned_by_their_hashes() -> None:
    pinned = locked("constraints-site.txt")
    assert {"furo", "myst-parser", "sphinx"} <= set(pinned)
    assert all(one.hashes for one in pinned.values())


class Assets(HTMLParser):
    """Gathers what a browser fetches by itself to show a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        has = dict(attrs)
        if tag == "link" and has.get("rel") in {"stylesheet", "icon", "preload", "preconnect"}:
            self.found.append(has["href"] or "")
        elif tag != "a":
            self.found += [value for name in ("src", "srcset") if (value := has.get(name))]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (SPHINX / ".done").exists():
        pytest.skip("no Sphinx here: make site")
    folder = tmp_path_factory.mktemp("site")
    words = ["-q", "-W", "--keep-going", "-d", str(folder / "trees"), "-c", "docs/site", "."]
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE, *words, str(folder / "site")],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(SPHINX)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return folder / "site"


@pytest.mark.deep
def test_it_builds_without_a_network_and_without_a_warning(site: Path) -> None:
    for page in PAGES:
        assert (site / page.relative_to(ROOT).with_suffix(".html")).is_file()
    assert (site / "index.html").read_bytes() == (site / "README.html").read_bytes()


@pytest.mark.deep
def test_pages_and_styles_fetch_nothing_from_other_hosts(site: Path) -> None:
    for page in site.rglob("*.html"):
        assets = Assets(page).found
        assert assets
        assert not [one for one in assets if re.match(r"(\w+:)?//", one)], page.name
    for style in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(\w+:)?//", style.read_text()), style.name


def pages_of(site: Path) -> list[Path]:
    return sorted(site.rglob("*.html"))


async def open_page(tab: Tab, page: Path) -> None:
    await tab.open(page.as_uri())
    await tab.until(f"location.href === '{page.as_uri()}' && document.readyState === 'complete'")


# On a busy machine each of fifty pages takes two seconds, and their build more than a minute.
@pytest.mark.timeout(900)
@pytest.mark.deep
@pytest.mark.skipif(bool(MISSING), reason=MISSING)
async def test_pages_fit_a_phone_in_both_colours_and_ask_no_other_host(site: Path) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    async with chromium() as tab:
        for page in pages_of(site):
            await open_page(tab, page)
            for width in (420, 1280):
                await tab.size(width)
                assert await tab.run("document.documentElement.scrollWidth") <= width, page.name
        colours = set()
        for scheme in ("dark", "light"):
            await tab.scheme(scheme)
            await open_page(tab, site / "index.html")
            colours.add(await tab.run(background))
        assert len(colours) == 2
        assert {url.partition(":")[0] for url in tab.asked} <= {"file", "data"}
        assert tab.complaints == []


@pytest.mark.deep
@pytest.mark.skipif(bool(MISSING), reason=MISSING)
async def test_a_word_is_found_without_a_server(site: Path) -> None:
    async with chromium() as tab:
        await tab.open((site / "search.html").as_uri() + "?q=imbalance")
        async with asyncio.timeout(60):
            await tab.until("document.querySelectorAll('#search-results li').length > 0")
