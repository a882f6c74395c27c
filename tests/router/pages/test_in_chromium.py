"""The page in a real browser: with 4 pods and with 400, wide and narrow, by keyboard, under its policy."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.router.access.guarded import TOKENS
from tests.router.pages.stand import DEMO, live, pods
from tests.router.pick_stand import QUIET, UNENDING, pod, prompt
from tests.router.pick_stand import standing as shadowing
from tests.router.running_router import running_router
from tests.router.service_stand import IDS, packed, standing
from tests.servers.chromium import MISSING, Tab, browser, new_tab
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.assemble.means import ShadowMode

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

ROWS = "document.querySelectorAll('#pods tbody tr').length"
DECISIONS = "document.querySelectorAll('#decisions tbody tr:not(.why)').length"
PAUSED_HIDES_TWO = """(() => {
  const rows = () => document.querySelectorAll('#decisions tbody tr:not(.why)').length;
  const hidden = rows();
  document.getElementById('pause').click();
  const shown = rows();
  document.getElementById('pause').click();
  return hidden === 1 && shown === 2;
})()"""
"""Whether a paused page goes on hiding a second decision that it has read."""
PAINTED = """[...document.querySelectorAll('.painted span')].map((part) => ({
  tag: part.querySelector('b')?.innerText ?? '',
  text: [...part.childNodes].filter((one) => one.nodeName === '#text').map((one) => one.data).join(''),
  held: part.style.getPropertyValue('--held') !== '',
}))"""
CHOSEN = """(() => {
  document.getElementById("kind").value = "ids";
  document.getElementById("kind").dispatchEvent(new Event("input"));
})()"""
TYPED = """(() => {
  const prompt = document.getElementById("prompt");
  prompt.value = %s;
  prompt.dispatchEvent(new Event("input"));
  return document.getElementById("kind").value;
})()"""
"""Types a prompt; the kind that the page takes it for."""
FOCUSED = "document.activeElement.innerText || document.activeElement.id"


@pytest.fixture(scope="module")
def devtools() -> Iterator[str]:
    with browser() as address:
        yield address


@pytest.fixture
async def tab(devtools: str) -> AsyncIterator[Tab]:
    async with new_tab(devtools) as opened:
        yield opened
        hosts = {url.split("/")[2] for url in opened.asked if "://" in url}
        assert all(host.startswith("127.0.0.1:") for host in hosts), hosts


def text(selector: str) -> str:
    return f"document.querySelector({selector!r})?.innerText.replaceAll('\\u00a0', ' ')"


@asynccontextmanager
async def opened(tab: Tab, folder: Path, tables: str = pods("pod-1")) -> AsyncIterator[str]:
    """Run a router of one pod and open its page; yield the router's address."""
    async with live(folder, tables) as (router, _):
        await tab.open(f"http://{router.http_address}/")
        await tab.until(f"{ROWS} === 1")
        yield router.http_address


async def test_it_shows_pods_decisions_and_what_a_prompt_would_find(
    tab: Tab, tmp_path: Path, model_folder: Path
) -> None:
    async with standing(tmp_path, model_folder) as stand:
        await stand.generate({"model": "demo", "prompt": IDS})
        await stand.has_blocks(6)
        await stand.stub.Pick(pb.PickRequest(prompt=packed(), session_id="s-1"))
        await tab.open(f"http://{stand.router.http_address}/")
        await tab.until(f"({text('#decisions tbody')} || '').includes('pod-1')")
        assert "ready · 1 pod" in await tab.run(text("#status"))
        assert "96.0 %" in await tab.run(text("#cards"))
        assert "exact" in await tab.run(text("#pods tbody tr"))

        await tab.run("document.getElementById('pause').click()")
        await stand.stub.Pick(pb.PickRequest(prompt=packed()))
        await tab.until(PAUSED_HIDES_TWO)
        assert "paused at" in await tab.run(text("#status"))
        await tab.run("document.getElementById('pause').click()")
        assert "paused" not in await tab.run(text("#status"))
        await tab.until(f"{DECISIONS} === 2 && !!document.querySelector('option[value=s-1]')")
        for session, rows in (("s-1", 1), ("", 2)):
            await tab.run(
                f"document.getElementById('session').value = {session!r};"
                "document.getElementById('session').dispatchEvent(new Event('input'))"
            )
            await tab.until(f"{DECISIONS} === {rows}")
        await tab.run(
            "document.getElementById('span').value = '300';"
            "document.getElementById('span').dispatchEvent(new Event('input'))"
        )

        await tab.run("location.hash = '#pod/pod-1'")
        await tab.until(f"({text('#pod .notice .note')} || '').includes('stored blocks')")
        wraps = "getComputedStyle(document.querySelector('#pod .notice .note')).whiteSpace"
        assert await tab.run(wraps) == "normal", "a phone is narrower than the line of events"

        await tab.run("location.hash = '#explain'")
        await tab.until("document.getElementById('model').value === 'demo'")
        chat = json.dumps({"messages": [{"role": "user", "content": "[1]"}]})
        for prompt, kind in (("[1] and {2}", "text"), (chat, "chat"), (json.dumps(IDS), "ids")):
            assert await tab.run(TYPED % json.dumps(prompt)) == kind
        await tab.run(CHOSEN)
        for prompt, kind in (("1 2", "ids"), (chat, "chat"), (json.dumps(IDS), "ids")):
            assert await tab.run(TYPED % json.dumps(prompt)) == kind, "JSON says what it is"
        await tab.run("document.getElementById('ask').requestSubmit()")
        shown = await tab.until(
            f"!!document.querySelector('#explained table') && {text('#explained')}"
        )
        assert "100 tokens" in shown
        assert "gpu 96 (96.0 %)" in shown
        assert "pod-1" in await tab.run(text("#explained table"))

        await tab.run("location.hash = '#pod/pod-1'")
        address = await tab.until(text("#pod .copyable code"))
        await tab.run("document.querySelector('#pod .copy').click()")
        assert await tab.until(text(".said")) == f"Copied: {address}"
        assert "followed from the first batch" in await tab.until(text("#pod .notice"))
        await tab.run("location.hash = '#findings'")
        await tab.until(f"({text('#conditions tbody')} || '').includes('1 of 1 pods are healthy')")
        assert not tab.complaints
    await tab.until(f"({text('#status')}).includes('trying again')")


async def test_a_prompt_s_own_text_is_painted_by_who_holds_it(
    tab: Tab, tmp_path: Path, model_folder: Path
) -> None:
    held, new = "<b>Ski</b> \u65e5\u672c\u8a9e \U0001f6b2 " * 12, "and <i>this</i> is new"
    async with standing(tmp_path, model_folder) as stand:
        await stand.generate({"model": "demo", "prompt": held})
        await stand.has_blocks(6)
        scored = await stand.score(pb.Prompt(model="demo", text=held + new), explain=True)
        matched = scored.scores[0].matched_tokens
        border = scored.explanation.token_ends[matched - 1]
        await tab.open(f"http://{stand.router.http_address}/#explain")
        await tab.until("document.getElementById('model').value === 'demo'")
        await tab.run(
            f"document.getElementById('prompt').value = {json.dumps(held + new)};"
            "document.getElementById('ask').requestSubmit()"
        )
        await tab.until("!!document.querySelector('#explained table')")
        parts = await tab.run(PAINTED)
    assert [part["tag"] for part in parts if part["tag"]] == ["pod-1", "no pod"]
    assert "".join(part["text"] for part in parts) == held + new
    assert "".join(part["text"] for part in parts if part["held"]) == (held + new)[:border]
    # Each block is a part of its own.
    assert len(parts) == scored.prompt_tokens // 16 + bool(scored.prompt_tokens % 16)


@pytest.mark.deep
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (420, "dark")])
@pytest.mark.parametrize("number", [4, 400])
async def test_few_and_many_pods_fit_a_wide_and_a_narrow_window(
    tab: Tab, tmp_path: Path, number: int, width: int, scheme: str
) -> None:
    names = [f"pod-{one}" for one in range(1, number + 1)]
    async with live(tmp_path, pods(*names)) as (router, _):
        await tab.size(width)
        await tab.scheme(scheme)
        await tab.open(f"http://{router.http_address}/")
        await tab.until(f"{ROWS} === {number}")
        # Tables scroll within their frames; the page itself does not.
        assert await tab.run("document.documentElement.scrollWidth <= innerWidth")
        first = "document.querySelector('#pods tbody a').innerText"
        assert await tab.run(first) == "pod-1"
        await tab.run("document.querySelector('#pods th button').click()")
        await tab.until(f"{first} === 'pod-{number}'")
        await tab.run(
            "document.getElementById('filter').value = 'pod-3';"
            "document.getElementById('filter').dispatchEvent(new Event('input'))"
        )
        found = sum("pod-3" in name for name in names)
        await tab.until(f"{ROWS} === {found}")
    assert not [one for one in tab.complaints if "ERR_" not in one]


async def test_all_views_are_reached_by_keyboard(tab: Tab, tmp_path: Path) -> None:
    async with opened(tab, tmp_path):
        reached = []
        for _ in range(8):
            await tab.press("Tab")
            reached.append(await tab.run(FOCUSED))
        assert reached[:5] == [
            "Skip to the content", "warmpath", "Overview", "Explain a prompt", "Findings",
        ]  # fmt: skip
        # Rows are made anew with each frame.
        await tab.run("window.held = document.querySelector('#pods tbody a'); held.focus()")
        await tab.until("!held.isConnected && document.activeElement.innerText === 'pod-1'")
        await tab.run("document.querySelector('nav a[href=\"#explain\"]').focus()")
        await tab.press("Enter")
        await tab.until("!document.getElementById('explain').hidden")
        assert await tab.run("document.getElementById('overview').hidden")


COUNTED = """(async () => {
  const { showOverview } = await import("/live/overview.js");
  const point = (at, prompt_tokens, captured_tokens) => ({
    at, requests: 0, prompt_tokens, captured_tokens, available_tokens: captured_tokens,
    average_tokens: 0, lag_seconds: 0, queued: 0,
  });
  const points = [point(1000, 273, 240), point(1010, %s, 240)];
  const client = (client, saved_seconds) => ({
    client, saved_seconds, tenant: "t", model: "m", requests: 1, prompt_tokens: 4, captured_tokens: 3,
    average_tokens: 1, predicted_tokens: 0, delivered_tokens: 0,
  });
  const clients = [client("less", 1), client("more", 2.5)];
  showOverview({ snapshot: { pods: [], clients, queue: null, point: points[1] }, points, decisions: [] });
  const said = [document.querySelector("#cards div"), ...document.querySelectorAll("#clients tbody td")];
  return said.map((one) => one.innerText).join("\\n").replaceAll("\u00a0", " ");
})()"""


@pytest.mark.parametrize(
    ("tokens", "said"), [(364, "0.0 %\nin the last 5 minutes"), (273, "87.9 %\nsince the start")]
)
async def test_the_share_that_was_cached_is_of_one_span(
    tab: Tab, tmp_path: Path, tokens: int, said: str
) -> None:
    async with opened(tab, tmp_path):
        await tab.run("document.getElementById('pause').click()")
        told = await tab.run(COUNTED % tokens)
        assert said in told
        first, second = "more\nt\nm\n1\n4\n75.0 %\n25.0 %\n2.5 s", "less\nt"
        assert 0 < told.find(first) < told.find(second), "who saved most comes first"


CUT = """[...document.querySelectorAll('#shadow, #shadow *')]
  .filter((one) => one.scrollWidth > one.clientWidth + 1 && one.clientWidth).map((one) => one.innerText)"""
"""The texts of a comparison that do not fit."""


async def test_a_shadow_page_leads_with_what_the_policy_would_have_brought(
    tab: Tab, tmp_path: Path
) -> None:
    tables = QUIET + UNENDING + pod("a") + pod("b")
    shadow = ShadowMode()
    async with shadowing(tmp_path, tables, metrics="127.0.0.1:0", shadow=shadow) as stand:
        for name, where in (("one", "a"), ("two", "b")):
            await stand.report(name, "STARTED", pod=where, prompt=prompt(1000))
            await stand.report(name, "FINISHED")
        [row] = (await stand.diagnose()).shadows
        await tab.size(390)
        await tab.open(f"http://{stand.http_address}/")
        lead = "Of 2 requests 1 would have found 96.0 % more of their prompt cached."
        await tab.until(f"{text('#shadow .lead')} === {lead!r}")
        said = await tab.run(text("#shadow .cards"))
        balance = f"{row.chosen_imbalance:.2f} → {row.warmpath_imbalance:.2f}"
        saved = f"{1000 * row.saved_p50:.0f} ms", f"p90 {1000 * row.saved_p90:.0f} ms"
        for told in ("0.0 % exact", "0.0 % → 48.0 %", balance, *saved):
            assert told in said
        assert row.chosen_imbalance == 1 < row.warmpath_imbalance
        for width in (390, 1280):
            await tab.size(width)
            assert await tab.run("document.documentElement.scrollWidth <= innerWidth")
            assert not await tab.run(CUT)
            assert await tab.run("document.querySelector('main dl').closest('#shadow') !== null")
        assert "saved" not in await tab.run(text("#cards")), "its picks decide nothing"
        assert (await tab.run(text("#main"))).startswith(lead), "notices come after it"


async def test_a_router_that_is_not_ready_says_why_above_all_else(tab: Tab, tmp_path: Path) -> None:
    async with live(tmp_path, DEMO) as (router, _):
        await tab.open(f"http://{router.http_address}/")
        assert await tab.until(text("#notices .notice")) == "Not ready: pods: no pod is known"
        assert (await tab.run(text("#main"))).startswith("Not ready")


async def test_names_are_never_markup(tab: Tab, tmp_path: Path) -> None:
    name = "<img src=x onerror=alert(1)>"
    tables = (
        '[[models]]\nname = "<b>m"\n'
        f'[[pods]]\nid = "{name}"\nmodel = "<b>m"\naddress = "127.0.0.1:9"\nevents = "tcp://127.0.0.1:9"\n'
    )
    async with opened(tab, tmp_path, tables):
        assert await tab.run("document.querySelector('#pods tbody a').innerText") == name
        await tab.run("document.querySelector('#pods tbody a').click()")
        assert await tab.until(text("#pod h2")) == name
        assert await tab.run("document.querySelectorAll('img, main b').length") == 0


async def test_a_router_that_asks_for_a_token_gets_it_from_the_page(
    tab: Tab, tmp_path: Path
) -> None:
    (tmp_path / "reader").write_text(TOKENS["reader"])
    clients = '[[clients]]\nname = "reader"\nroles = ["read"]\ntoken-file = "reader"\n'
    async with live(tmp_path, clients + pods("pod-1")) as (router, _):
        await tab.open(f"http://{router.http_address}/")
        await tab.until("!document.getElementById('login').hidden")
        assert not await tab.run(text("#login-why"))
        await tab.run(
            "document.getElementById('token').value = 'a wrong one';"
            "document.getElementById('login').requestSubmit()"
        )
        await tab.until(f"({text('#login-why')}).includes('The token does not do')")
        await tab.run(
            f"document.getElementById('token').value = {TOKENS['reader']!r};"
            "document.getElementById('login').requestSubmit()"
        )
        await tab.until(f"{ROWS} === 1")
        assert await tab.run("document.getElementById('login').hidden")


@pytest.mark.deep
async def test_the_page_follows_a_router_that_comes_back(tab: Tab, tmp_path: Path) -> None:
    async with opened(tab, tmp_path) as address:
        pass
    await tab.until(f"({text('#status')}).includes('trying again')")
    async with running_router(tmp_path, pods("pod-1", "pod-2"), metrics=address):
        await tab.until(f"{ROWS} === 2")
