"""What is of a wrong type is refused by the name of its field, before anything is sent."""

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from warmpath import Index, Picker, Scorer
from warmpath.client.async_client import AsyncClient
from warmpath.client.calls import PodLoad, Prompt
from warmpath.client.connection import Retry
from warmpath.client.credentials import SettingError
from warmpath.client.sync_client import Client
from warmpath.process.tls import TlsPaths

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


NAMES = ("policy", "session", "booking_id", "priority", "tenant")
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
