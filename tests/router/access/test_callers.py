"""Callers are known by token or certificate and may do what their roles allow; others are not read."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.h2grpc.served import BOTH, new_server
from tests.waiting import until
from warmpath.h2grpc.method import Method
from warmpath.process.reread import TokenError, read_token
from warmpath.router.access.entrance import OPEN, ROLES, Entrance
from warmpath.router.calls import llmd as indexer
from warmpath.router.calls.service import SERVICE
from warmpath.router.config.read import ConfigError, load
from warmpath.router.config.schema import ClientSpec
from warmpath.router.transport.call import Call

SECRET = "correct-horse-battery"
SCORE, PODS = "/warmpath.v1.Router/Score", "/warmpath.v1.Router/ListPods"


@pytest.fixture
def callers(tmp_path: Path) -> Entrance:
    (tmp_path / "gateway").write_text(f"{SECRET}\n")
    (tmp_path / "monitor").write_text("x" * 16)
    return Entrance(
        [
            ClientSpec("gateway", ["score"], token_file="gateway"),
            ClientSpec("monitor", ["read"], token_file="monitor"),
            ClientSpec("operator", ["score", "read"], certificate="operator.example"),
        ],
        tmp_path,
    )


def bearer(token: str) -> list[str]:
    return [f"Bearer {token}"]


def test_every_method_of_the_services_needs_a_role() -> None:
    services = (SERVICE, indexer.SERVICE)
    methods = {f"/{of.full_name}/{one.name}" for of in services for one in of.methods}
    assert methods == {name for name in ROLES if name.startswith(("/warmpath.", "/indexer."))}
    assert not any(name.startswith(OPEN) for name in ROLES)


def test_a_certificates_name_gives_its_clients_roles(callers: Entrance) -> None:
    for asked in (SCORE, PODS):
        assert callers.refusal(asked, (), ["10.0.0.1", "operator.example"]) is None
    for name in ("operator.example.org", "OPERATOR.example", "operator"):
        refused = callers.refusal(SCORE, (), [name])
        assert refused is not None
        assert refused.why == "unknown"


def test_a_caller_has_the_roles_of_all_that_it_proves_to_be(callers: Entrance) -> None:
    assert callers.refusal(PODS, [*bearer(SECRET), *bearer("x" * 16)], ()) is None
    assert callers.refusal(PODS, bearer("some-other-token"), ["operator.example"]) is None


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        SECRET,
        f"Basic {SECRET}",
        f"Bearer {SECRET}x",
        f"Bearer {SECRET[:-1]}",
        f"Bearer {SECRET} {SECRET}",
        "Bearer \udcff\u2028",
    ],
)
def test_whoever_has_no_known_token_is_refused_without_a_word_of_it(
    callers: Entrance, header: str
) -> None:
    refused = callers.refusal(SCORE, [header], ())
    assert refused is not None
    assert refused.why == "unknown"
    assert refused.text == (
        "Score needs the role 'score', and the caller has shown neither a known token nor a known "
        "certificate"
    )


def test_the_scheme_is_read_as_http_has_it(callers: Entrance) -> None:
    assert callers.refusal(SCORE, [f"bearer  {SECRET} "], ()) is None


def test_a_method_without_a_role_is_refused_to_everybody(callers: Entrance) -> None:
    refused = callers.refusal("/warmpath.v1.Router/New", (), ["operator.example"])
    assert refused is not None
    assert refused.why == "role"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "has 0 bytes in its line; a token has 16 to 4096"),
        (b"sesame-sesame15", "has 15 bytes"),
        (b"s" * 4097, "has 4097 bytes"),
        (b"sesame-sesame-16\nsesame-sesame-16\n", "is not one line"),
        (b"sesame sesame 16", "without spaces"),
        (b"sesame-s\xc3\xa9same-16", "printable ASCII"),
        (b"sesame-sesame-1\x0016", "printable ASCII"),
    ],
)
def test_a_file_without_a_token_is_refused_without_a_word_of_it(
    tmp_path: Path, content: bytes, problem: str
) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(TokenError, match=problem) as refused:
        read_token(path)
    assert str(path) in str(refused.value)
    assert "sesame" not in str(refused.value)
    assert refused.value.__suppress_context__
    with pytest.raises(OSError, match="clients: 'a': token-file:") as at_start:
        Entrance([ClientSpec("a", ["read"], token_file="token")], tmp_path)
    assert "sesame" not in str(at_start.value)


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_the_end_of_the_line_is_no_part_of_a_token(tmp_path: Path, end: str) -> None:
    (tmp_path / "token").write_text(SECRET + end, newline="")
    assert read_token(tmp_path / "token") == SECRET


def test_two_clients_with_one_token_are_refused_at_start(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(SECRET)
    file = tmp_path / "router.toml"
    file.write_text(
        '[[clients]]\nname = "a"\nroles = ["read"]\ntoken-file = "a"\n'
        '[[clients]]\nname = "b"\nroles = ["score"]\ntoken-file = "b"\n[[models]]\nname = "m"\n'
    )
    with pytest.raises(ConfigError, match="has the same token as client 'a'") as refused:
        load(file)
    assert f"{file}:8: clients[1].token-file" in str(refused.value)
    assert SECRET not in str(refused.value)


TOKEN = "correct-horse-battery"
KNOWN = (("authorization", f"Bearer {TOKEN}"),)
KINDS = ("each", "once")


class Counts:
    def __init__(self) -> None:
        self.refused: list[tuple[str, str]] = []

    def kept_out(self, asked: str, why: str) -> None:
        self.refused.append((asked, why))


class Server:
    """Has a method that answers each message, and one that answers the first, which it may do at once."""

    def __init__(self) -> None:
        self.calls = 0
        self.counts = Counts()

    async def each(self, call: Call) -> None:
        self.calls += 1
        while (message := await call.read()) is not None:
            await call.write(message)

    def once(self, message: bytes, _: Call) -> bytes:
        self.calls += 1
        return message

    def methods(self) -> dict[str, Method]:
        return {"/it/each": Method(self.each), "/it/once": Method(self.each, self.once)}


@pytest.fixture
def served() -> Server:
    return Server()


@pytest.fixture(params=BOTH)
async def channel(
    served: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> AsyncIterator[grpc.aio.Channel]:
    for name in KINDS:
        monkeypatch.setitem(ROLES, f"/it/{name}", "score")
    (tmp_path / "token").write_text(TOKEN)
    entrance = Entrance([ClientSpec("gateway", ["score"], token_file="token")], tmp_path)
    server = new_server(request.param, entrance.guarded(served.methods(), served.counts))
    address = await server.start("127.0.0.1:0")
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            yield channel
    finally:
        await server.stop(0)


async def refused(
    channel: grpc.aio.Channel, kind: str, metadata: Any = None
) -> tuple[grpc.StatusCode, str]:
    """Begin a call and send no message; return the status that ends it, and its text."""
    call = channel.stream_stream(f"/it/{kind}")(metadata=metadata)
    return await call.code(), await call.details() or ""


kinds = pytest.mark.parametrize("kind", KINDS)


@kinds
async def test_who_has_the_role_gets_every_answer(
    channel: grpc.aio.Channel, served: Server, kind: str
) -> None:
    assert await channel.unary_unary(f"/it/{kind}")(b"two words", metadata=KNOWN) == b"two words"
    assert not served.counts.refused


@kinds
async def test_whoever_is_not_known_is_refused_before_any_message_and_no_handler_runs(
    channel: grpc.aio.Channel, served: Server, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    text = (
        f"{kind} needs the role 'score', and the caller has shown neither a known token nor a known "
        "certificate"
    )
    for metadata in (None, (("authorization", "Bearer guessed-guessed-1"),)):
        said = await refused(channel, kind, metadata)
        assert said == (grpc.StatusCode.UNAUTHENTICATED, text)
    assert not served.calls
    assert served.counts.refused == [(kind, "unknown")] * 2
    assert f"{kind}: refused to ipv4:127.0.0.1:" in caplog.text
    for secret in (TOKEN, "guessed"):
        assert secret not in caplog.text


@kinds
async def test_without_the_role_a_known_caller_is_refused(
    channel: grpc.aio.Channel, served: Server, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ROLES, f"/it/{kind}", "read")
    assert await refused(channel, kind, KNOWN) == (
        grpc.StatusCode.PERMISSION_DENIED,
        f"client 'gateway' lacks the role 'read', which {kind} needs",
    )
    assert not served.calls
    assert served.counts.refused == [(kind, "role")]


async def test_a_method_that_is_not_there_stays_unimplemented(channel: grpc.aio.Channel) -> None:
    code, _ = await refused(channel, "nothing")
    assert code is grpc.StatusCode.UNIMPLEMENTED


async def test_a_call_that_is_cancelled_ends_behind_the_guard_too(
    channel: grpc.aio.Channel, served: Server
) -> None:
    call = channel.stream_stream("/it/each")(metadata=KNOWN)
    await call.write(b"x")
    assert await call.read() == b"x"
    call.cancel()
    await until(call.done)
    assert served.calls == 1
