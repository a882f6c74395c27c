"""Help shows a newcomer an example and the defaults; errors are in our words and say what to do.

Also a shell's completion, which is made of the parsers, and `warmpath version`.
"""

import argparse
import json
import re
import shutil
import socketserver
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import grpc
import pytest

from tests.base_install import LEFT_OUT, without
from tests.cli.conftest import Output, commands
from warmpath.cli import version
from warmpath.cli.asking import problem_of_call
from warmpath.cli.completion import main, parsers
from warmpath.client.failure import CallError

FOUND = dict(parsers(commands()))
RAW = re.compile(
    r"\[Errno|ssl:default|Connect call failed|last error|UNAVAILABLE|Traceback|urlopen"
)
"""Texts of libraries."""


@pytest.mark.parametrize("name", FOUND)
def test_help_ends_with_an_example_that_is_a_command_line_of_it(name: str) -> None:
    shown = FOUND[name].format_help()
    [example] = re.findall(r"^example:\n  (.*warmpath .*)$", shown, re.MULTILINE)
    assert re.search(rf"\bwarmpath {name}\b", example)


@pytest.mark.parametrize("name", FOUND)
def test_help_of_all_commands_looks_alike(name: str) -> None:
    shown = FOUND[name].format_help()
    after_usage = shown.split("\n\n")[1]
    assert re.match(r"[A-Z][a-z]+ ", after_usage), "a sentence that begins with its verb"
    assert "(default:" not in shown
    assert "None" not in shown
    assert "../shared" not in shown, "a folder that users do not have"


@pytest.mark.parametrize("name", FOUND)
def test_each_option_says_what_it_is_for_and_its_default(name: str) -> None:
    shown = " ".join(FOUND[name].format_help().split())
    for one in FOUND[name]._actions:
        if isinstance(one, argparse._SubParsersAction):
            continue
        assert one.help, one.dest
        given = one.default
        said = given in (None, "", False, argparse.SUPPRESS) or given == [] or one.required
        if not said and not isinstance(given, Path) and not isinstance(given, tuple):
            said = f"{given:g}" if isinstance(given, float) else str(given)
            said = "yes by default" if given is True else said
            assert said in shown.replace("- ", "-"), one.dest


@pytest.mark.parametrize(
    ("missing", "extra"), [(LEFT_OUT, "router"), (("cycler", "matplotlib"), "")]
)
def test_without_an_extra_every_command_has_its_help_or_one_sentence(
    missing: tuple[str, ...], extra: str
) -> None:
    code = """
import contextlib, io, json
from warmpath.cli.main import main
said = {}
for name in json.load(sys.stdin):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            main([*name.split(), "--help"])
        except SystemExit:
            pass
    said[name] = out.getvalue()
print(json.dumps(said))
"""
    names = json.dumps(["publish", "health", "version", *FOUND])
    program = [sys.executable, "-c", without(missing) + code]
    ended = subprocess.run(program, input=names, capture_output=True, text=True, check=True)
    for name, said in json.loads(ended.stdout).items():
        is_help = said.startswith("usage: ")
        assert is_help or (extra and said.count("\n") == 1), (name, said)
        assert is_help or f"warmpath-router[{extra}]" in said, (name, said)
        assert is_help or name not in {"publish", "health", "version"}


def main_of(name: str) -> Callable[[list[str]], int]:
    return next(one for one in commands() if one.name == name).load()  # type: ignore[no-any-return]


def run(words: list[str]) -> int:
    try:
        return main_of(words[0])(words[1:])
    except SystemExit as ended:
        return int(ended.code or 0)


@pytest.mark.parametrize(
    ("line", "status", "says"),
    [
        ("pods --router {at}", 3, "no router answers at {at}: nothing listens there; start one"),
        ("decisions --router {at}", 3, "nothing listens there; start one"),
        ("score hello --router {at}", 3, "nothing listens there; start one"),
        ("explain hello --router {at}", 3, "nothing listens there; start one"),
        ("doctor --router {at}", 3, "nothing listens there; start one"),
        ("score --file nofile --router {at}", 2, "nofile: there is no such file"),
        ("explain --chat-file / --router {at}", 2, "/: it is a folder, not a file"),
        ("score --router {at}", 2, "give exactly one of PROMPT"),
        ("explain --router {at}", 2, "warmpath explain: give exactly one of"),
        ("score hello --timeout soon --router {at}", 2, "soon is not a number above 0"),
        ("pods --token-file nofile --router {at}", 2, "--token-file: nofile: there is no such file or folder; the file must have a token"),
        ("pods --tls-ca nofile --router {at}", 2, "--tls-ca: there is no file nofile"),
        ("pods --router localhost", 2, "'localhost' is not HOST:PORT, such as 127.0.0.1:7400"),
        ("pods --router http://127.0.0.1:7400", 2, "'http://127.0.0.1:7400' is not HOST:PORT, such as"),
        ("pods --router nohost.invalid:1", 3, "there is no such host"),
        ("pods --colour", 2, "unrecognized arguments: --colour; 'warmpath pods --help' shows"),
        ("check-config nofile", 2, "nofile: there is no such file"),
        ("serve --config nofile", 2, "nofile: there is no such file"),
        ("verify nofile", 2, "nofile: there is no such file"),
        ("demo --trace nofile", 2, "nofile: there is no such file"),
        ("index stats --config nofile", 2, "nofile: there is no such file"),
        ("record --target http://x --events tcp://127.0.0.1:1 --out /nofolder/x", 2, "/nofolder/x: there is no"),
        ("record --target http://127.0.0.1:9 --events tcp://127.0.0.1:1 --out {new}", 1, "--target: http://127.0.0.1:9 does not list its models: nothing listens there"),
        ("simulate --trace nofile", 2, "there is no file nofile"),
        ("demo --pods 0", 2, "--pods: must be above 0"),
        ("health http://127.0.0.1:9/", 1, "nothing listens there"),
        ("health grpc://127.0.0.1:9", 1, "nothing listens there"),
        ("check-config /", 2, "/: it is a folder, not a file"),
        ("demo --trace /", 2, "/: it is a folder, not a file"),
        ("gateway --envoy nofile --simulate 1", 2, "nofile"),
        ("simworker --tokenizer nofile", 2, "nofile/tokenizer.json: no such file"),
        ("health --tls-ca nofile", 2, "--tls-ca: nofile cannot be used: there is no such file"),
        ("health grpc://127.0.0.1:9 --tls-ca /dev/null", 2, "--tls-ca: /dev/null cannot be used"),
        ("gateway --router nohost", 2, "nohost"),
    ],
)  # fmt: skip
def test_an_error_is_in_our_words_and_names_the_next_step(
    line: str, status: int, says: str, held_port: int, tmp_path: Path, output: Output
) -> None:
    at = f"127.0.0.1:{held_port}"
    assert run(line.format(at=at, new=tmp_path / "new.jsonl.gz").split()) == status
    said = output.err()
    assert says.format(at=at) in said
    assert not RAW.search(said)
    assert len(said.splitlines()) <= 2, "a usage of many lines hides the error"


def test_a_model_that_is_missing_is_asked_for_by_its_option() -> None:
    missing = CallError(grpc.StatusCode.INVALID_ARGUMENT, "prompt.model: is missing")
    args = argparse.Namespace(router="r", tls_ca=None, tls_cert=None)
    assert problem_of_call(missing, args).endswith("is missing; name the model with --model")


def test_what_is_not_the_service_asked_for_is_named(tmp_path: Path, output: Output) -> None:
    junk = tmp_path / "junk"
    junk.write_text("hello")
    assert run(["score", "--token-ids-file", str(junk)]) == 2
    assert "neither a JSON array nor integers: 'hello'" in output.err()
    assert run(["verify", str(junk)]) == 2
    assert output.err().endswith("line 1 is not JSON\n")
    assert run(["pods", "--tls-ca", str(junk)]) == 2
    assert f"{junk} cannot be used: no certificate or crl found" in output.err()


@pytest.mark.parametrize(
    ("answer", "line", "status", "says"),
    [
        (b"\0\0\x0c\4\0\0\0\0\0", "health http://{at}/", 1, "if it is gRPC, the URL is grpc://"),
        (b"HTTP/1.1 400 No\r\n\r\n", "health https://{at}/", 1, "it answers without TLS"),
        (b"HTTP/1.1 400 No\r\n\r\n", "index stats --url redis://{at}", 3, "an HTTP server answers there"),
    ],
)  # fmt: skip
def test_a_wrong_port_is_named(
    answer: bytes, line: str, status: int, says: str, output: Output
) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answering) as server:
        server.answer = answer  # type: ignore[attr-defined]
        Thread(target=server.serve_forever, daemon=True).start()
        at = f"127.0.0.1:{server.server_address[1]}"
        assert run(line.format(at=at).split()) == status
        server.shutdown()
    assert says in output.err()


class Answering(socketserver.BaseRequestHandler):
    """Says the same to whoever speaks first."""

    def handle(self) -> None:
        self.request.recv(1000)
        self.request.sendall(self.server.answer)  # type: ignore[attr-defined]


@pytest.fixture
def script(output: Output, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: commands())
    assert main(["bash"]) == 0
    return output.out()


def completed(script: str, *words: str) -> list[str]:
    """Return what bash offers for the last of these words."""
    ask = 'COMP_WORDS=(warmpath "$@"); COMP_CWORD=$#; _shtab_warmpath; printf "%s\\n" "${COMPREPLY[@]}"'
    line = ["bash", "--norc", "-c", f"{script}\n{ask}", "-", *words]
    return subprocess.run(line, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize(
    ("words", "offers"),
    [
        (["sco"], ["score"]),
        (["index", ""], ["stats", "sweep", "dump"]),
        (["index", "stats", "--js"], ["--json"]),
        (["publish", "--engine", "s"], ["sglang"]),
        (["serve", "--log-level", ""], ["debug", "info", "warning", "error"]),
        (["completion", "z"], ["zsh"]),
        (["pods", "--timeout", ""], []),
    ],
)
def test_bash_offers_what_fits(script: str, words: list[str], offers: list[str]) -> None:
    assert completed(script, *words) == offers


def test_bash_offers_every_command_and_all_its_options(script: str) -> None:
    assert {name for name in FOUND if " " not in name} <= {*completed(script, "")}
    for name, parser in FOUND.items():
        shown = parser.format_help()
        offered = completed(script, *name.split(), "--")
        assert all(option in shown for option in offered), name
        assert {"--help"} <= {*offered}, name


def test_bash_offers_files_where_an_option_takes_one(script: str) -> None:
    assert "README.md" in completed(script, "score", "--file", "READ")


def test_zsh_reads_its_script(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: commands())
    assert main(["zsh"]) == 0
    script = output.out()
    assert '"--engine[its kind]:engine:(vllm sglang trtllm)"' in script
    if (zsh := shutil.which("zsh")) is not None:
        subprocess.run([zsh, "--no-rcs", "-n"], input=script, text=True, check=True)


ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
REPEATED = {
    "deploy/helm/warmpath/Chart.yaml": r"^(?:version|appVersion): (.+)$",
    "deploy/kustomize/base/kustomization.yaml": r"newTag: (.+)$",
    "deploy/kustomize/base/deployment.yaml": r"image: warmpath-router:(.+)$",
    "deploy/examples/vllm.yaml": r"image: warmpath-publisher:(.+)$",
}
"""What cannot read pyproject.toml, and how the version stands there."""


def said(output: Output) -> dict[str, object]:
    assert version.main(["--json"]) == 0
    found: dict[str, object] = output.json()
    return found


def test_everything_that_outlives_a_process_has_its_version(output: Output) -> None:
    found = said(output)
    assert found["shared_index"] == {"schema": 1, "buckets": 64, "segment": 64}
    assert found["contracts"] == ["warmpath.v1", "warmpath.watch.v1", "indexer.v1"]
    assert version.main([]) == 0
    lines = output.out().splitlines()
    assert lines[0].startswith(f"warmpath {found['version']}, commit ")
    assert "shared index in Redis: schema 1, buckets 64, segment 64" in lines
    assert f"state file: {found['state_file']}" in lines


def test_the_commit_of_an_image_or_of_an_installation_from_git_is_shown(
    output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = json.dumps({"url": "https://x", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}})
    distribution = SimpleNamespace(read_text=lambda _: noted)
    monkeypatch.setattr("importlib.metadata.distribution", lambda _: distribution)
    monkeypatch.delenv(version.REVISION, raising=False)
    assert said(output)["commit"] == "c0ffee"
    monkeypatch.setenv(version.REVISION, "abcd")
    assert said(output)["commit"] == "abcd"


def test_a_commit_that_nobody_knows_is_said_to_be_so(
    output: Output, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(version, "__file__", str(tmp_path / "a" / "b" / "version.py"))
    monkeypatch.setattr(
        "importlib.metadata.distribution", lambda _: SimpleNamespace(read_text=lambda _: None)
    )
    monkeypatch.delenv(version.REVISION, raising=False)
    assert version.main([]) == 0
    assert "commit not known" in output.out()


@pytest.mark.parametrize("path", REPEATED)
def test_a_file_that_repeats_the_version_has_the_same(path: str) -> None:
    found = re.findall(REPEATED[path], (ROOT / path).read_text(), re.MULTILINE)
    assert {*found} == {VERSION}
