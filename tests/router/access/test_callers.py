"""Callers are known by token or certificate, and may ask for what their roles allow."""

from pathlib import Path

import pytest

from warmpath.process.reread import TokenError, read_token
from warmpath.router.access.entrance import OPEN, ROLES, Entrance
from warmpath.router.calls import llmd as indexer
from warmpath.router.calls.service import SERVICE
from warmpath.router.config.read import ConfigError, load
from warmpath.router.config.schema import ClientSpec

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
