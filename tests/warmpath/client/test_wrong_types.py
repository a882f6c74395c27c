"""A prompt as a caller gives it; what is of a wrong type is refused by its field, before anything is sent."""

import asyncio
import doctest
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from warmpath import Index, Picker, Scorer
from warmpath.client import calls
from warmpath.client.async_client import AsyncClient
from warmpath.client.calls import PodLoad, Prompt, prompt_of
from warmpath.client.connection import Retry
from warmpath.client.credentials import SettingError
from warmpath.client.sync_client import Client
from warmpath.indexer.keys.key import pack_tokens
from warmpath.process.tls import TlsPaths
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb

NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("target", value) for value in (None, 5, b"h:1", [])),
        *(("model", value) for value in (5, b"m")),
        *(("tls", value) for value in ("ca.pem", True, {})),
        *(("token_file", value) for value in (5, b"token", [])),
        *(("timeout", value) for value in (None, "1", [], -1, float("nan"))),
        *(("retry", value) for value in (3, "x", {})),
    ],
)
def test_a_clients_setting(kind: type[Any], field: str, value: object) -> None:
    given = {"target": NOBODY, field: value}
    with pytest.raises(SettingError, match=f"^{field}: ") as raised:
        kind(given.pop("target"), **given)
    assert raised.value.argument == field


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: TlsPaths(5), "ca"),  # type: ignore[arg-type]
        (lambda: TlsPaths("a", "b", 5), "key"),  # type: ignore[arg-type]
        (lambda: Retry(attempts=None), "attempts"),  # type: ignore[arg-type]
        (lambda: Retry(most_seconds="1"), "most_seconds"),  # type: ignore[arg-type]
        (lambda: PodLoad(5), "pod"),  # type: ignore[arg-type]
        (lambda: PodLoad("p", running="1"), "running"),  # type: ignore[arg-type]
        (lambda: PodLoad("p", waiting=1.5), "waiting"),  # type: ignore[arg-type]
        (lambda: PodLoad("p", kv_usage=None), "kv_usage"),  # type: ignore[arg-type]
        (lambda: Prompt([1], model=5), "model"),  # type: ignore[arg-type]
        (lambda: Prompt([1], extra_key=b""), "extra_key"),  # type: ignore[arg-type]
        (lambda: Prompt([1], items=5), "items"),  # type: ignore[arg-type]
        (lambda: Prompt([1], items=["x"]), r"items\[0\]"),  # type: ignore[list-item]
    ],
)
def test_a_value_that_calls_take(make: Callable[[], object], field: str) -> None:
    with pytest.raises(TypeError, match=f"^{field} is of type "):
        make()


NAMES = ("policy", "session", "parent_session", "booking_id", "priority", "tenant", "client")
NO_LIST = "pods is of type str; give a list of pods' ids$"
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("score", ([1],), {"pods": 5}, "pods"),
    ("score", ([1],), {"pods": "a"}, NO_LIST),
    ("score", ([1],), {"pods": iter("a")}, "pods"),
    ("score", ([1],), {"pods": [None]}, r"pods\[0\]"),
    ("score", ([1],), {"strategy": 5}, "strategy"),
    ("score", ([1],), {"explain": "yes"}, "explain"),
    ("score", (None,), {}, "a prompt has no content"),
    ("score", (5,), {}, "tokens"),
    ("score", ("\ud800",), {}, "text is not Unicode"),
    ("score", ([1],), {"strategy": "\ud800"}, "strategy is not Unicode"),
    ("pick", ([1],), {"pods": "a"}, NO_LIST),
    ("pick", ([1],), {"loads": None}, "loads"),
    ("pick", ([1],), {"loads": ["x"]}, r"loads\[0\]"),
    ("pick", ([1],), {"shadow": "no"}, "shadow"),
    ("pick", ([1],), {"session_final": "no"}, "session_final"),
    *(("pick", ([1],), {name: UUID(int=7)}, f"{name} is of type UUID, not str$") for name in NAMES),
    ("explain", ([1],), {"pods": "a"}, NO_LIST),
    ("explain", ([1],), {"disaggregated": []}, "disaggregated"),
    ("explain", ([1],), {"loads": 5}, "loads"),
    ("report", (5, "finished"), {}, "booking_id is of type int, not str$"),
    ("report", ("b", "started"), {"pod": 5}, "pod is of type int, not str$"),
    ("report", ("b", "finished"), {"cached_tokens": "3"}, "cached_tokens is of type str, not int$"),
    ("report", ("b", None), {}, "event"),
    ("report", ("b", []), {}, "event"),
    ("report", ("b", "finished"), {"rank": "0"}, "rank"),
    ("report", ("b", "finished"), {"loads": [5]}, r"loads\[0\]"),
    ("pods", (5,), {}, "model"),
    ("decisions", (1.5,), {}, "limit is of type float, not int$"),
    ("decisions", (), {"pod": 5}, "pod is of type int, not str$"),
    ("diagnose", ([],), {}, "model"),
    ("score_stream", (5,), {}, "prompts"),
    ("score_stream", ([],), {"pods": 5}, "pods"),
    ("score_stream", ([[1]],), {"pods": "a"}, NO_LIST),
]


def blocking(method: str, given: tuple[Any, ...], more: dict[str, Any]) -> None:
    with Client(NOBODY) as client:
        found = getattr(client, method)(*given, **more)
        if method == "score_stream":
            list(found)


async def awaiting(method: str, given: tuple[Any, ...], more: dict[str, Any]) -> None:
    async with AsyncClient(NOBODY) as client:
        found = getattr(client, method)(*given, **more)
        if method == "score_stream":
            async for _ in found:
                pass
        else:
            await found


@pytest.mark.parametrize(("method", "given", "more", "field"), CALLS)
async def test_an_argument_of_a_call(
    method: str, given: tuple[Any, ...], more: dict[str, Any], field: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{field}"):
        await asyncio.to_thread(blocking, method, given, more)
    with pytest.raises((TypeError, ValueError), match=f"^{field}"):
        await awaiting(method, given, more)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: Scorer(Index("m")).score([1], pods="a"), NO_LIST),
        (lambda: Picker(Index("m")).pick([1], pods="a"), NO_LIST),
        (lambda: Picker(Index("m")).pick([1], booking_id=5), "booking_id is of type int, not str$"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_an_argument_of_a_library_in_the_process(call: Callable[[], object], problem: str) -> None:
    with pytest.raises(TypeError, match=f"^{problem}"):
        call()


def test_the_examples_of_the_docstrings_are_true() -> None:
    assert not doctest.testmod(calls).failed


def test_ids_and_texts_alone_are_prompts() -> None:
    assert prompt_of([1, 2]) == Prompt([1, 2])
    assert prompt_of(b"\1\0\0\0").message("m").token_ids_packed == b"\1\0\0\0"
    assert prompt_of("a text") == Prompt(text="a text")
    assert prompt_of(Prompt(text="a")) == Prompt(text="a")


def test_the_clients_model_is_that_of_ids_and_texts_and_a_body_names_its_own() -> None:
    packed = pack_tokens([1])
    assert Prompt([1]).message("m") == pb.Prompt(model="m", token_ids_packed=packed)
    assert Prompt([1], model="o").message("m") == pb.Prompt(model="o", token_ids_packed=packed)
    assert Prompt(chat_body=b"{}").message("m") == pb.Prompt(chat_body=b"{}")
    body = Prompt(completions_body=b"{}", model="o").message("m")
    assert body == pb.Prompt(model="o", completions_body=b"{}")


@pytest.mark.parametrize(
    ("fields", "error", "problem"),
    [
        ({}, ValueError, "a prompt has no content; give one of tokens, text, chat_body, complet"),
        ({"text": "", "tokens": []}, ValueError, "a prompt has tokens and text; give one of"),
        ({"tokens": "text"}, TypeError, "tokens is of type str; give a text as `text`"),
        ({"text": b"text"}, TypeError, "text is of type bytes, not str"),
        ({"chat_body": "{}"}, TypeError, "chat_body is of type str, not bytes"),
    ],
)
def test_a_prompt_has_one_content_of_its_type(
    fields: dict[str, object], error: type[Exception], problem: str
) -> None:
    with pytest.raises(error, match=problem):
        Prompt(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tokens", "problem"),
    [
        ([1 << 32], "unsigned 32-bit"),
        (["a"], "unsigned 32-bit"),
        (b"12345", "5 bytes; token ids take 4"),
    ],
)
def test_what_is_no_token_id_is_refused(tokens: list[int], problem: str) -> None:
    with pytest.raises(ValueError, match=f"tokens: .*{problem}"):
        Prompt(tokens).packed_tokens()


def test_no_log_or_traceback_shows_a_prompts_content() -> None:
    for one in (Prompt([4711]), Prompt(text="4711"), Prompt(chat_body=b"4711")):
        assert "4711" not in repr(one)
