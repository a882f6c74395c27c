"""Commands show a router who asks, by certificate or by token, and keep the token to themselves."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cli.conftest import Output
from tests.servers.certificates import Authority, Certificate
from warmpath.cli.asking import pods_main
from warmpath.cli.doctor import main as doctor_main
from warmpath.router.assemble.running import running
from warmpath.router.config.read import load

TOKEN = "correct-horse-battery"


class Guarded:
    """The folder and the address of a router that wants certificates and tokens."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.known = self.authority.certificate("operator")
        self.other = self.authority.certificate("nobody")
        self.token = folder / "token"
        self.token.write_text(TOKEN)
        self.address = ""
        shown = self.authority.certificate("router")
        self.file = folder / "router.toml"
        self.file.write_text(
            '[server]\ndrain-delay-seconds = 0\nlisten = "127.0.0.1:0"\nmetrics-listen = ""\ndrain-seconds = 0.2\n'
            f'[server.tls]\ncert = "{shown.cert}"\nkey = "{shown.key}"\n'
            f'client-ca = "{self.authority.ca}"\n[[models]]\nname = "m"\n'
            '[[clients]]\nname = "operator"\nroles = ["read"]\ncertificate = "operator"\n'
            '[[clients]]\nname = "monitor"\nroles = ["read"]\ntoken-file = "token"\n'
        )

    def options(self, shown: Certificate) -> list[str]:
        return [
            f"--router={self.address}", f"--tls-ca={self.authority.ca}",
            f"--tls-cert={shown.cert}", f"--tls-key={shown.key}",
        ]  # fmt: skip


@pytest.fixture
async def router(tmp_path: Path) -> AsyncIterator[Guarded]:
    guarded = Guarded(tmp_path)
    async with running(load(guarded.file), tmp_path) as router:
        guarded.address = router.address
        yield guarded


async def test_a_certificate_or_a_token_opens_the_router(router: Guarded, output: Output) -> None:
    for options in (
        router.options(router.known),
        [*router.options(router.other), f"--token-file={router.token}"],
    ):
        assert await asyncio.to_thread(pods_main, [*options, "--json"]) == 0
        assert output.json() == {"pods": []}
        assert await asyncio.to_thread(doctor_main, [*options, "--json"]) == 1
        findings = output.json()["findings"]
        assert "pods" in {one["kind"] for one in findings}


async def test_without_them_the_refusal_says_what_is_missing(
    router: Guarded, output: Output
) -> None:
    assert await asyncio.to_thread(pods_main, router.options(router.other)) == 1
    said = output.err()
    assert said.startswith("warmpath: UNAUTHENTICATED: ListPods needs the role 'read'")
    assert await asyncio.to_thread(pods_main, [f"--router={router.address}"]) == 3
    assert output.err().startswith("warmpath: ")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--tls-cert=x"], "--tls-cert and --tls-key: give both or none"),
        (["--tls-cert=x", "--tls-key=y"], "--tls-cert: needs --tls-ca"),
        (
            ["--token-file=token", "--router=router.example:7400"],
            "--token-file: would go to router.example:7400 in plain text, without TLS",
        ),
    ],
)
def test_options_that_do_not_fit_are_named(
    options: list[str], problem: str, output: Output
) -> None:
    assert pods_main(options) == 2
    assert output.err() == f"warmpath: {problem}\n"


def test_a_token_that_is_none_is_not_printed(tmp_path: Path, output: Output) -> None:
    (tmp_path / "token").write_text("sesame")
    assert pods_main([f"--token-file={tmp_path / 'token'}"]) == 2
    said = output.err()
    assert "has 6 bytes in its line" in said
    assert "sesame" not in said
