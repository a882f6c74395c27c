"""Pods tokenise for a model that has nothing else: each by its own scheme and key, in turn, chats if they take them."""

import json
import ssl
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fake_engine import FakeEngine, tokenized
from tests.fake_http import Answer, Asked
from tests.router.pick_stand import QUIET, Stand, standing
from tests.servers.certificates import Authority
from warmpath.prefixstore.tokenizers import engine as engines
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.prompt import tokenizer_sources

TEXT = "a patient answer takes a while " * 20


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_sources, "REMOTE_SECONDS", 30.0)
    monkeypatch.setattr(tokenizer_sources, "LAST_SECONDS", 30.0)


def chat(content: str, role: str = "user") -> pb.Prompt:
    body = {"model": "demo", "messages": [{"role": role, "content": content}]}
    return pb.Prompt(chat_body=json.dumps(body).encode())


def table(name: str, engine: FakeEngine, *more: str) -> str:
    address = engine.url.rpartition("/")[2]
    lines = [f'id = "{name}"', 'model = "demo"', f'address = "{address}"', *more]
    return "[[pods]]\n" + "\n".join(lines) + "\n"


async def tokens(stand: Stand, prompt: pb.Prompt) -> int:
    picked = await stand.pick(prompt)
    assert not picked.reckoned_because
    return picked.prompt_tokens


def keyed(key: str) -> object:
    """Return how an engine answers that wants a key."""

    def answer(asked: Asked) -> Answer:
        given = asked.headers.get("Authorization")
        return tokenized(asked) if given == f"Bearer {key}" else Answer(401)

    return answer


async def test_each_pod_tokenises_over_its_own_scheme_with_its_own_key(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    theirs = authority.certificate("engine")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(theirs.cert, theirs.key)
    probe = f'{QUIET}ca = "{authority.ca}"\n[limits]\ntokenize-seconds = 60\n'
    (tmp_path / "first").write_text("first-key\n")
    (tmp_path / "second").write_text("second-key\n")
    with ExitStack() as stack:
        one, other = (stack.enter_context(FakeEngine(tls)) for tls in (context, None))
        one.answer, other.answer = keyed("first-key"), keyed("second-key")
        pods = table("one", one, "https = true", 'key-file = "first"') + table(
            "other", other, 'key-file = "second"'
        )
        async with standing(tmp_path, probe + pods) as stand:
            assert await tokens(stand, chat(TEXT)) == 1 + len(TEXT)
            before = len(one.asked), len(other.asked)
            for number in range(4):
                content = f"{number} {TEXT}"
                assert await tokens(stand, chat(content)) == 1 + len(content)
            assert (len(one.asked), len(other.asked)) == tuple(2 + asked for asked in before)
            # A key that is replaced is read anew; where it is wrong, the other pod is asked.
            (tmp_path / "first").write_text("other-key\n")
            for number in range(2):
                content = f"{number} again {TEXT}"
                assert await tokens(stand, chat(content)) == 1 + len(content)


async def test_pods_that_take_no_chats_tokenise_texts_and_chats_go_by_their_bytes(
    tmp_path: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "CHATS_AGAIN", 1e9)

    def texts_alone(asked: Asked) -> Answer:
        return Answer(400) if b'"messages"' in asked.body else tokenized(asked)

    engine.answer = texts_alone
    tables = f"{QUIET}[limits]\ntokenize-seconds = 60\n{table('a', engine)}"
    async with standing(tmp_path, tables + table("b", engine)) as stand:
        first = await stand.pick(chat(TEXT))
        assert "takes no chats" in first.reckoned_because
        await stand.report(first.booking_id, "FINISHED")
        second = await stand.pick(chat(TEXT))
        best = second.candidates[0]
        assert best.pod == first.candidates[0].pod
        assert best.matched_tokens >= len(TEXT) // 4 - 64
        asked = len(engine.asked)
        findings = (await stand.diagnose()).findings
        assert any("takes no chats" in one.text for one in findings)
        assert await tokens(stand, pb.Prompt(model="demo", text=TEXT)) == 1 + len(TEXT)
        assert len(engine.asked) == asked + 1, "chats are not asked for again"


async def test_a_chat_that_one_pod_refuses_is_taken_to_one_that_takes_chats(
    tmp_path: Path, engine: FakeEngine
) -> None:
    with FakeEngine() as older:
        older.answer = lambda asked: (
            Answer(400) if b'"messages"' in asked.body else tokenized(asked)
        )
        tables = f"{QUIET}[limits]\ntokenize-seconds = 60\n{table('a', engine)}"
        async with standing(tmp_path, tables + table("b", older)) as stand:
            for number in range(6):
                content = f"{number} {TEXT}"
                assert await tokens(stand, chat(content)) == 1 + len(content)
