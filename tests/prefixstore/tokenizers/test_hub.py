"""The hub: what is pinned is what is loaded, and whatever is wrong is said and done with in time."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from tests.fake_http import Answer, Asked
from tests.fake_hub import COMMIT, REPO, FakeHub, sha256
from warmpath.prefixstore.tokenizers.hub import HubSource, Pin
from warmpath.prefixstore.tokenizers.tokenizer import TokenizerUnavailableError

SECRET = "hf_very_secret"


@pytest.fixture
def files(model_folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in model_folder.iterdir()}


@pytest.fixture
def hub(files: dict[str, bytes]) -> Iterator[FakeHub]:
    with FakeHub(files) as hub:
        yield hub
    huggingface_hub.close_session()


@pytest.fixture
def digests(files: dict[str, bytes]) -> dict[str, str]:
    return {name: sha256(raw) for name, raw in files.items()}


Source = Callable[..., HubSource]


@pytest.fixture
def source(
    hub: FakeHub, digests: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Source:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))

    def make(
        repo: str = REPO,
        revision: str = COMMIT,
        files: dict[str, str] | None = None,
        **more: object,
    ) -> HubSource:
        settings = {"endpoint": hub.url, "timeout": 30.0} | more
        return HubSource(Pin(repo, revision, digests if files is None else files), **settings)

    return make


def test_what_is_in_the_cache_needs_no_hub(source: Source, hub: FakeHub) -> None:
    source().load()
    hub.asked.clear()
    source().load()
    source(offline=True).load()
    assert hub.asked == []


def test_offline_without_the_file_names_it_and_the_cache(
    source: Source, hub: FakeHub, tmp_path: Path
) -> None:
    with pytest.raises(TokenizerUnavailableError, match="offline") as raised:
        source(offline=True).load()
    assert str(tmp_path / "cache") in str(raised.value)
    assert hub.asked == []


def test_only_pinned_files_are_fetched(source: Source, hub: FakeHub) -> None:
    hub.files |= {"modeling.py": b"raise SystemExit", "config.json": b'{"auto_map": {}}'}
    source().load()
    assert {Path(asked.path).name for asked in hub.asked if asked.method == "GET"} == {
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_a_digest_that_differs_is_refused_before_anything_is_parsed(
    source: Source, hub: FakeHub, digests: dict[str, str]
) -> None:
    hub.files["tokenizer.json"] = b"not even json"
    with pytest.raises(TokenizerUnavailableError) as raised:
        source().load()
    assert f"not {digests['tokenizer.json']} as configured" in str(raised.value)
    assert sha256(b"not even json") in str(raised.value)


def test_a_cache_that_was_tampered_with_is_refused(source: Source, tmp_path: Path) -> None:
    source().load()
    [cached] = (tmp_path / "cache").glob("models--*/snapshots/*/tokenizer.json")
    cached.write_bytes(cached.read_bytes() + b" ")
    with pytest.raises(TokenizerUnavailableError, match="SHA-256"):
        source(offline=True).load()


def test_a_file_that_decides_tokens_is_to_be_named(
    source: Source, hub: FakeHub, digests: dict[str, str]
) -> None:
    del digests["tokenizer_config.json"]
    with pytest.raises(
        TokenizerUnavailableError, match=r"has tokenizer_config\.json, which decides"
    ):
        source().load()
    del hub.files["tokenizer_config.json"]
    source().load()


def test_a_broken_tokenizer_json_is_said_to_be_the_hubs(source: Source, hub: FakeHub) -> None:
    hub.files["tokenizer.json"] = b'{"model": 1}'
    named = {name: sha256(raw) for name, raw in hub.files.items()}
    with pytest.raises(TokenizerUnavailableError, match=f"^{REPO} at {COMMIT[:12]}"):
        source(files=named).load()


OTHER = "f" * 40


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"revision": OTHER}, f"has no revision {OTHER}"),
        ({"files": {"config.json": "0" * 64}}, r"has no config\.json"),
        ({"repo": "maker/other"}, r"maker/other.*no such repository"),
        ({}, "HTTP 503"),
    ],
)
def test_what_the_hub_has_not_is_named(
    source: Source, hub: FakeHub, digests: dict[str, str], asked: dict[str, Any], named: str
) -> None:
    if not asked:
        hub.answer = lambda _: Answer(503)
    if "files" in asked:
        asked = {"files": digests | asked["files"]}
    with pytest.raises(TokenizerUnavailableError, match=named):
        source(**asked).load()


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_token_names_its_file_and_is_shown_nowhere(
    source: Source, hub: FakeHub, tmp_path: Path, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    token_file = tmp_path / "token"
    token_file.write_text(SECRET + "\n", encoding="utf-8")
    hub.answer = lambda _: Answer(status)
    with pytest.raises(TokenizerUnavailableError) as raised:
        source(token_file=token_file).load()
    assert f"HTTP {status}" in str(raised.value)
    assert str(token_file) in str(raised.value)
    assert SECRET not in str(raised.value) + caplog.text
    assert {asked.headers.get("authorization") for asked in hub.asked} == {f"Bearer {SECRET}"}


def test_the_token_opens_what_is_private(source: Source, hub: FakeHub, tmp_path: Path) -> None:
    hub.token = SECRET
    with pytest.raises(TokenizerUnavailableError, match="asked with no token"):
        source().load()
    token_file = tmp_path / "token"
    token_file.write_text(SECRET, encoding="utf-8")
    source(token_file=token_file).load()


@pytest.mark.parametrize("content", [None, b"", b"\xff", b"two\nlines"])
def test_a_token_file_without_a_token_is_named(
    source: Source, hub: FakeHub, tmp_path: Path, content: bytes | None
) -> None:
    token_file = tmp_path / "token"
    if content is not None:
        token_file.write_bytes(content)
    with pytest.raises(TokenizerUnavailableError, match=str(token_file)):
        source(token_file=token_file).load()
    assert hub.asked == []


def test_no_token_of_this_machine_is_sent(
    source: Source, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    source().load()
    assert not any("authorization" in asked.headers for asked in hub.asked)


def test_a_download_that_takes_longer_goes_on_and_the_next_load_has_it(
    source: Source, hub: FakeHub
) -> None:
    serve = hub.answer

    def slow(asked: Asked) -> Answer:
        if asked.method == "GET":
            assert hub.gate.wait(30)
        return serve(asked)

    hub.answer = slow
    slow_source = source(timeout=0.2)
    for _ in range(2):
        with pytest.raises(TokenizerUnavailableError, match=r"0\.2 s"):
            slow_source.load()
    assert sum(asked.method == "GET" for asked in hub.asked) <= 1
    hub.gate.set()
    while True:
        try:
            slow_source.load()
        except TokenizerUnavailableError:
            continue
        break


def test_a_file_beyond_any_tokenizer_is_not_fetched(source: Source, hub: FakeHub) -> None:
    headers = {"X-Repo-Commit": COMMIT, "ETag": '"x"', "X-Linked-Size": str(1 << 40)}
    hub.answer = lambda _: Answer(200, b"", headers)
    with pytest.raises(TokenizerUnavailableError, match="at most"):
        source().load()
    assert {asked.method for asked in hub.asked} == {"HEAD"}


@pytest.mark.parametrize(
    ("pin", "where"),
    [
        (Pin("../etc", COMMIT, {"tokenizer.json": "0" * 64}), "repo"),
        (Pin(REPO, "main", {"tokenizer.json": "0" * 64}), "revision"),
        (Pin(REPO, COMMIT[:12], {"tokenizer.json": "0" * 64}), "revision"),
        (Pin(REPO, COMMIT, {}), "files"),
        (Pin(REPO, COMMIT, {"tokenizer.json": "0" * 64, "tokenizer.py": "0" * 64}), "files"),
        (Pin(REPO, COMMIT, {"tokenizer.json": "0" * 63}), "files"),
    ],
)
def test_a_pin_that_pins_nothing_is_refused(pin: Pin, where: str) -> None:
    assert where in [key for key, _ in pin.problems()]
