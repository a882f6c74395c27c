"""Commands beside a running router: they show who asks, `health` says whether it is fit, `score --explain` all of a prompt."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests import base_install
from tests.cli.conftest import Output
from tests.router.access.guarded import Folder, serving
from tests.router.running_router import running_router
from tests.servers.certificates import Authority
from warmpath.cli import asking as client
from warmpath.cli.asking import pods_main
from warmpath.cli.doctor import main as doctor_main
from warmpath.cli.health import main
from warmpath.indexer.keys.key import unpack_tokens
from warmpath.prefixstore.tokenizers.tokenizer import FolderTokenizer

Guarded = tuple[Folder, str]
"""A router that wants certificates and tokens: its folder and its address."""


@pytest.fixture
async def router(tmp_path: Path) -> AsyncIterator[Guarded]:
    folder = Folder(tmp_path)
    async with serving(folder.config(tls=True, mutual=True)) as router:
        yield folder, router.address


def options(router: Guarded, name: str) -> list[str]:
    """Return the options of a caller whose certificate has a name."""
    folder, address = router
    shown, ca = folder.old.certificate(name.rpartition("/")[2], name), folder.old.ca
    files = [f"--tls-ca={ca}", f"--tls-cert={shown.cert}", f"--tls-key={shown.key}"]
    return [f"--router={address}", *files]


async def test_a_certificate_or_a_token_opens_the_router(router: Guarded, output: Output) -> None:
    token = f"--token-file={router[0].path / 'reader'}"
    for given in (
        options(router, "spiffe://example/operator"),
        [*options(router, "spiffe://example/nobody"), token],
    ):
        assert await asyncio.to_thread(pods_main, [*given, "--json"]) == 0
        assert output.json() == {"pods": []}
        assert await asyncio.to_thread(doctor_main, [*given, "--json"]) == 1
        findings = output.json()["findings"]
        assert "pods" in {one["kind"] for one in findings}


async def test_without_them_the_refusal_says_what_is_missing(
    router: Guarded, output: Output
) -> None:
    assert await asyncio.to_thread(pods_main, options(router, "spiffe://example/nobody")) == 1
    said = output.err()
    assert said.startswith("warmpath: UNAUTHENTICATED: ListPods needs the role 'read'")
    assert await asyncio.to_thread(pods_main, [f"--router={router[1]}"]) == 3
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


MODEL = '[[models]]\nname = "demo"\n'
POD = (
    f'{MODEL}[[pods]]\nid = "pod-1"\nmodel = "demo"\naddress = "127.0.0.1:9"\n'
    "[probe]\ninterval-seconds = 0\n"
)


async def health(*args: str) -> int:
    return await asyncio.to_thread(main, args)


async def test_a_router_with_a_pod_is_fit_by_both_ways(tmp_path: Path, output: Output) -> None:
    async with running_router(tmp_path, POD) as (router, _):
        assert await health(f"http://{router.http_address}/readyz") == 0
        assert await health(f"grpc://{router.address}/warmpath.v1.Router") == 0
    by_page, by_grpc = output.out().split("ok\n")[1:]
    lines = by_page.splitlines()
    assert "holds  pods: 1 of 1 pods are healthy" in lines
    assert "holds  listening: gRPC listens" in lines
    assert {line.split(":")[0].split()[-1] for line in lines} == {
        "staying", "listening", "pods", "index", "coverage", "tokenizers"
    }  # fmt: skip
    assert not by_grpc


async def test_a_router_without_pods_is_unfit_and_says_why(tmp_path: Path, output: Output) -> None:
    async with running_router(tmp_path, MODEL) as (router, _):
        assert await health(f"http://{router.http_address}/readyz") == 1
        assert "FAILS  pods: no pod is known" in output.err()
        assert await health(f"http://{router.http_address}/readyz", "--json") == 1
        found = output.json()
        assert (found["fit"], found["problem"]) == (False, "status 503")
        assert found["conditions"]["pods"] == {
            "required": True, "holds": False, "reason": "no pod is known"
        }  # fmt: skip
        assert await health(f"http://{router.http_address}/healthz") == 0
        assert await health(f"grpc://{router.address}/no.such.Service") == 1
    assert "NOT_FOUND" in output.err()


async def test_under_tls_the_certificate_is_checked(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    shown = authority.certificate("router")
    tls = f'[server.tls]\ncert = "{shown.cert}"\nkey = "{shown.key}"\n'
    async with running_router(tmp_path, tls + POD) as (router, _):
        port = router.http_address.rpartition(":")[2]
        page = f"https://127.0.0.1:{port}/readyz"
        call = f"grpc://127.0.0.1:{router.address.rpartition(':')[2]}/liveness"
        assert await health(page, "--tls-ca", str(authority.ca)) == 0
        assert await health(call, "--tls-ca", str(authority.ca)) == 0
        assert await health(page) == 1


@pytest.mark.parametrize("args", [["127.0.0.1:7401"], ["file:///etc/passwd"], ["--tls-cert", "x"]])
def test_what_cannot_be_asked_is_refused_before(args: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(args)
    assert ended.value.code == 2


def test_it_runs_without_the_routers_parts() -> None:
    ended = base_install.run(
        "from warmpath.cli.health import main; sys.exit(main(['grpc://127.0.0.1:9']))"
    )
    assert ended.returncode == 1
    assert "nothing listens there" in ended.stderr


PROMPT = "You are a patient assistant that explains prefix caching. " * 400


@pytest.fixture
async def address(model_folder: Path) -> AsyncIterator[str]:
    tables = '[[models]]\nname = "m"\ntokenizer = "."\n'
    async with running_router(model_folder, tables) as (router, _):
        yield router.address


async def asked(address: str, *args: str) -> int:
    return await asyncio.to_thread(
        client.score_main, ["--router", address, "--model=m", "--explain", *args]
    )


async def told(address: str, output: Output, *args: str) -> dict[str, object]:
    assert await asked(address, "--json", *args) == 0
    explanation: dict[str, object] = output.json()["explanation"]
    return explanation


async def test_a_texts_tokens_and_what_of_them_was_known_are_told(
    address: str, model_folder: Path, output: Output
) -> None:
    new = await told(address, output, PROMPT)
    assert new["text"] == PROMPT
    assert new["stored_chars"] == new["stored_tokens"] == 0
    ids = unpack_tokens(base64.b64decode(str(new["token_ids_packed"])))
    tokenizer = FolderTokenizer(model_folder)
    whole = tokenizer.prefix + tokenizer.encode([PROMPT.encode()], at_start=True)[0]
    assert ids == unpack_tokens(whole + tokenizer.suffix)
    known = await told(address, output, PROMPT)
    assert known["stored_chars"] == len(PROMPT)
    assert known["stored_tokens"] == len(ids) - len(tokenizer.prefix + tokenizer.suffix) // 4
    assert known["token_ids_packed"] == new["token_ids_packed"]
    grown = await told(address, output, PROMPT + "And more.")
    assert 0 < int(str(grown["stored_chars"])) < len(PROMPT)


async def test_a_chat_is_told_as_its_template_wrote_it_with_the_time_of_each_step(
    address: str, tmp_path: Path, output: Output
) -> None:
    body = tmp_path / "chat.json"
    body.write_text(json.dumps({"messages": [{"role": "user", "content": "[b]hi[/b]"}]}))
    assert await asked(address, "--chat-file", str(body)) == 0
    printed = output.out()
    assert "[b]hi[/b]" in printed
    for part in ("text: ", "tokens: ", "block keys: ", "read the request", "render the chat"):
        assert part in printed
    assert printed.index("render the chat") < printed.index("tokenise") < printed.index("score ")


async def test_token_ids_are_explained_without_a_text(
    address: str, tmp_path: Path, output: Output
) -> None:
    ids = tmp_path / "ids"
    ids.write_text("1 2 3")
    assert await asked(address, "--token-ids-file", str(ids)) == 0
    printed = output.out()
    assert "text: " not in printed
    assert "tokens: 3" in printed


async def test_nothing_is_explained_unasked(address: str, output: Output) -> None:
    args = ["--router", address, "--model=m", "--json", PROMPT]
    assert await asyncio.to_thread(client.score_main, args) == 0
    assert "explanation" not in output.json()


@pytest.mark.parametrize("is_chat", [False, True])
async def test_where_each_token_ends_in_the_text_is_told(
    address: str, output: Output, model_folder: Path, tmp_path: Path, *, is_chat: bool
) -> None:
    body = tmp_path / "chat.json"
    body.write_text(json.dumps({"messages": [{"role": "user", "content": PROMPT}]}))
    explained = await told(
        address, output, *(["--chat-file", str(body)] if is_chat else [f"\u65e5 {PROMPT}"])
    )
    text, ends = str(explained["text"]), explained["token_ends"]
    assert isinstance(ends, list)
    tokens = len(base64.b64decode(str(explained["token_ids_packed"]))) // 4
    assert (len(ends), ends[-1]) == (tokens, len(text))
    assert ends == sorted(ends)
    at = text.index(" prefix")
    tokenizer = FolderTokenizer(model_folder)
    [begun] = tokenizer.encode([text[:at].encode()], at_start=True)
    before = b"" if is_chat else tokenizer.prefix
    assert ends.index(at) + 1 == len(before + begun) // 4
