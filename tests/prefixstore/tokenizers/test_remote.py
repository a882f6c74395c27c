"""Engines as tokenizers: their own ids, in time, or a clear error; and the local one in their place.

One file: all tests ask one kind of server.
"""

import json
import logging
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.clock import Clock
from tests.fake_engine import BEGIN, FakeEngine, listed, tokenized
from tests.fake_http import Answer, Asked
from tests.prefixstore.byte_tokenizer import ByteTokenizer
from tests.servers.certificates import Authority
from warmpath.indexer.keys.key import pack_tokens
from warmpath.prefixstore.tokenizers.cache import TokenizerSource
from warmpath.prefixstore.tokenizers.engine import Engine
from warmpath.prefixstore.tokenizers.remote import EngineTokenizer, chat_text, engine_source
from warmpath.prefixstore.tokenizers.tokenizer import (
    FolderTokenizer,
    InvalidTextError,
    TokenizerUnavailableError,
)
from warmpath.prefixstore.tokenizers.trial import load_folder

PROMPT = "a prompt nobody may read"


def folder(path: Path) -> TokenizerSource:
    return TokenizerSource("the folder", partial(load_folder, path))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def fake() -> Iterator[FakeEngine]:
    with FakeEngine() as fake:
        yield fake


Make = Callable[..., Engine]


@pytest.fixture
def make(clock: Clock) -> Iterator[Make]:
    """Return a function that makes engines by their URLs; they are closed at the end."""
    with ExitStack() as stack:

        def make(
            *urls: str,
            timeout: float = 30.0,
            patience: float = 30.0,
            skip_for: float = 5.0,
            **more: Any,
        ) -> Engine:
            engine = Engine(
                lambda: urls,
                "demo",
                name=f"the engine at {', '.join(urls)}",
                timeout=timeout,
                patience=patience,
                skip_for=skip_for,
                clock=clock,
                **more,
            )
            stack.callback(engine.close)
            return engine

        yield make


@pytest.fixture
def engine(fake: FakeEngine, make: Make) -> Engine:
    return make(fake.url)


def one(engine: Engine, text: str = "a") -> bytes:
    return engine.tokenize(text, add_special_tokens=False)


def test_it_tokenises_as_the_engines_own_does(engine: Engine, fake: FakeEngine) -> None:
    remote, local = EngineTokenizer(engine), ByteTokenizer()
    for text in ("a", "Grüße, 世界", PROMPT * 100):
        assert remote.encode([text.encode()], at_start=True) == local.encode(
            [text.encode()], at_start=True
        )
        assert fake.bodies()[-1] == {"model": "demo", "prompt": text, "add_special_tokens": False}
    assert (remote.prefix, remote.suffix) == (local.prefix, local.suffix)
    assert not remote.has_cuts


def test_the_engine_is_given_its_newest_key_where_it_has_one(fake: FakeEngine, make: Make) -> None:
    keys = {fake.url: ["open", "", "sesame"]}

    def newest(url: str) -> str:
        return keys[url].pop()

    for key, given in (
        (None, None), (newest, "Bearer sesame"), (newest, None), (newest, "Bearer open"),
    ):  # fmt: skip
        one(make(fake.url, key=key))
        assert fake.asked[-1].headers.get("Authorization") == given


@pytest.mark.parametrize(
    ("host", "server_name", "is_recognised"),
    [
        ("127.0.0.1", None, True),
        ("127.0.0.2", None, False),
        ("engines.example", "engines.example", True),
        ("engines.example", "other.example", False),
        ("engines.example", None, False),
    ],
)
def test_an_engine_with_https_has_to_be_who_its_url_or_the_configured_name_says(
    tmp_path: Path, make: Make, host: str, server_name: str | None, *, is_recognised: bool
) -> None:
    authority = Authority(tmp_path)
    theirs = authority.certificate("engine", host)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(theirs.cert, theirs.key)
    verifying = ssl.create_default_context(cafile=authority.ca)
    with FakeEngine(context) as fake:
        engine = make(fake.url, tls=lambda: verifying, server_name=server_name)
        if is_recognised:
            assert one(engine) == pack_tokens([97])
        else:
            with pytest.raises(TokenizerUnavailableError, match="certificate verify failed"):
                one(engine)


def test_the_next_request_is_made_with_the_newest_certificate(tmp_path: Path, make: Make) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    theirs = authority.certificate("engine")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(theirs.cert, theirs.key)
    newest = []
    for shown in (
        other.certificate("wrong"),
        *(authority.certificate(f"own-{n}") for n in range(3)),
    ):
        newest.append(ssl.create_default_context(cafile=authority.ca))
        newest[-1].load_cert_chain(shown.cert, shown.key)
    with FakeEngine(context) as fake:
        engine = make(fake.url, skip_for=0.0, tls=lambda: newest[0])
        with pytest.raises(TokenizerUnavailableError):
            one(engine)
        for _ in range(3):
            newest.pop(0)
            for _ in range(2):
                assert one(engine) == pack_tokens([97])


def test_a_suffix_is_found_too(engine: Engine, fake: FakeEngine) -> None:
    fake.answer = lambda asked: listed(
        [1, 97, 2] if json.loads(asked.body)["add_special_tokens"] else [97]
    )
    remote = EngineTokenizer(engine)
    assert (remote.prefix, remote.suffix) == (pack_tokens([1]), pack_tokens([2]))


def test_special_tokens_that_are_not_around_the_text_are_refused(
    engine: Engine, fake: FakeEngine
) -> None:
    fake.answer = lambda asked: listed([json.loads(asked.body)["add_special_tokens"] + 5])
    with pytest.raises(TokenizerUnavailableError, match="not put around"):
        engine_source(engine).load()


def test_a_chat_is_sent_as_it_is(engine: Engine, fake: FakeEngine) -> None:
    remote = EngineTokenizer(engine)
    body = {
        "messages": [{"role": "user", "content": "hé"}],
        "tools": [{"type": "function"}],
        "add_generation_prompt": True,
        "continue_final_message": False,
        "chat_template_kwargs": {"thinking": False},
        "add_special_tokens": False,
    }
    expected = pack_tokens([BEGIN, *"hé".encode()])
    assert remote.chats.encode([chat_text(body).encode()], at_start=True) == [expected]
    assert fake.bodies()[-1] == body | {"model": "demo"}


@pytest.mark.parametrize(
    "answer",
    [
        b"not json " + PROMPT.encode(),
        b"[]",
        b"{}",
        b'{"tokens": "1"}',
        b'{"tokens": [1.5]}',
        b'{"tokens": [true]}',
        b'{"tokens": [-1]}',
        b'{"tokens": [4294967296]}',
        b'{"tokens": [1, 2], "count": 3}',
        b'{"tokens": ' + b"[" * 100_000,
        b"\xff",
    ],
)
def test_an_answer_that_is_none_is_refused_and_not_quoted(
    engine: Engine, fake: FakeEngine, answer: bytes
) -> None:
    fake.answer = lambda _: Answer(200, answer)
    with pytest.raises(TokenizerUnavailableError, match="the answer") as raised:
        one(engine, PROMPT)
    assert fake.url in str(raised.value)
    assert PROMPT not in str(raised.value)


def test_an_answer_without_end_is_cut_off(
    engine: Engine, fake: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warmpath.prefixstore.tokenizers.engine.MAX_ANSWER_BYTES", 1000)
    fake.answer = lambda _: listed([1] * 1000)
    with pytest.raises(TokenizerUnavailableError, match="more than 1000 bytes"):
        one(engine, PROMPT)


@pytest.mark.parametrize("status", [302, 401, 404, 500, 503])
def test_a_status_of_the_engines_making_is_named(
    engine: Engine, fake: FakeEngine, status: int
) -> None:
    fake.answer = lambda _: Answer(status, headers={"Location": "/elsewhere"})
    with pytest.raises(TokenizerUnavailableError, match=f"HTTP {status}"):
        one(engine, PROMPT)
    assert len(fake.asked) == 1


def test_what_the_engine_refuses_is_the_prompts_fault_and_the_engine_is_asked_on(
    engine: Engine, fake: FakeEngine
) -> None:
    refusal = json.dumps({"error": {"message": "roles must alternate", "code": 400}}).encode()
    fake.answer = lambda _: Answer(400, refusal)
    for _ in range(2):
        with pytest.raises(InvalidTextError, match="roles must alternate"):
            engine.ask({"messages": []})
    assert len(fake.asked) == 2


def test_an_engine_that_is_slow_is_given_up_on_while_another_is_left(
    fake: FakeEngine, make: Make
) -> None:
    with FakeEngine() as hanging:

        def never(_: Asked) -> Answer:
            hanging.gate.wait(60)
            return Answer()

        def late(asked: Asked) -> Answer:
            hanging.gate.wait(0.2)
            return tokenized(asked)

        hanging.answer, fake.answer = never, late
        assert one(make(hanging.url, fake.url, timeout=0.05)) == pack_tokens([97])
        assert len(hanging.asked) == len(fake.asked) == 1
        with pytest.raises(TokenizerUnavailableError, match=r"did not answer within 0\.05 s"):
            one(make(hanging.url, patience=0.05))
        hanging.gate.set()


def test_an_answer_that_trickles_is_given_up_on(
    engine: Engine, fake: FakeEngine, clock: Clock
) -> None:
    def late(asked: Asked) -> Answer:
        clock.now += 31
        return tokenized(asked)

    fake.answer = late
    with pytest.raises(TokenizerUnavailableError, match="did not answer within 30 s"):
        one(engine, PROMPT)


def test_the_next_engine_is_asked_and_the_failing_one_skipped_for_a_while(
    fake: FakeEngine, clock: Clock, make: Make
) -> None:
    with FakeEngine() as broken:
        broken.answer = lambda _: Answer(500)
        engine = make(broken.url, fake.url)
        for _ in range(3):
            assert one(engine) == pack_tokens([97])
        assert (len(broken.asked), len(fake.asked)) == (1, 3)
        clock.now += 5
        broken.answer = tokenized
        one(engine)
        one(engine)
        assert (len(broken.asked), len(fake.asked)) == (3, 3)


def test_where_all_are_skipped_nobody_is_asked(
    engine: Engine, fake: FakeEngine, clock: Clock
) -> None:
    fake.answer = lambda _: Answer(500)
    for _ in range(2):
        with pytest.raises(TokenizerUnavailableError, match="answers HTTP 500"):
            one(engine)
    assert len(fake.asked) == 1
    fake.answer = tokenized
    clock.now += 5
    one(engine)


def test_a_lone_surrogate_is_the_texts_fault(engine: Engine, fake: FakeEngine) -> None:
    with pytest.raises(InvalidTextError, match="surrogate"):
        one(engine, "a\ud800")
    with pytest.raises(InvalidTextError, match="surrogate"):
        engine.ask({"messages": [{"role": "user", "content": "\ud800"}]})
    assert fake.asked == []


def test_the_engine_is_preferred_and_the_folder_serves_while_it_is_away(
    engine: Engine,
    fake: FakeEngine,
    clock: Clock,
    model_folder: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    source = engine_source(engine, folder(model_folder))
    tokenizer = source.load()
    local = FolderTokenizer(model_folder)
    assert (tokenizer.prefix, tokenizer.vocab_size) == (local.prefix, local.vocab_size)
    by_engine = ByteTokenizer().encode([PROMPT.encode()], at_start=True)
    assert tokenizer.encode([PROMPT.encode()], at_start=True) == by_engine
    fake.answer = lambda _: Answer(500)
    for _ in range(3):
        assert (
            tokenizer.encode([PROMPT.encode()], at_start=True)
            == local.encode([PROMPT.encode()], at_start=True)
            != by_engine
        )
    assert engine.stats.fallbacks == 3
    assert caplog.text.count("the local tokenizer is used instead") == 1
    with pytest.raises(TokenizerUnavailableError):
        tokenizer.chats.encode([b'{"messages": []}'], at_start=True)
    fake.answer = tokenized
    clock.now += 5
    assert tokenizer.encode([PROMPT.encode()], at_start=True) == by_engine
    assert PROMPT not in caplog.text


def test_an_engine_that_is_down_is_named_and_with_a_fall_back_no_reason_not_to_load(
    make: Make, held_port: int, model_folder: Path
) -> None:
    url = f"http://127.0.0.1:{held_port}"
    with pytest.raises(TokenizerUnavailableError, match=f"{url}.*: nothing listens there"):
        engine_source(make(url)).load()
    tokenizer = engine_source(make(url), folder(model_folder)).load()
    assert tokenizer.encode([b"a b"], at_start=True) == FolderTokenizer(model_folder).encode(
        [b"a b"], at_start=True
    )


def test_without_the_fall_back_the_engine_serves_alone(
    engine: Engine, fake: FakeEngine, tmp_path: Path
) -> None:
    source = engine_source(engine, folder(tmp_path))
    assert source.load().encode([b"a"], at_start=True) == [pack_tokens([97])]
    fake.answer = lambda _: Answer(500)
    with pytest.raises(TokenizerUnavailableError, match=r"tokenizer\.json.*HTTP 500"):
        source.load()
