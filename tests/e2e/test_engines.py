"""`warmpath gateway --engine`: two commands to one's own fleet, with simulated engines and the real Envoy."""

import http.client
import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.e2e.test_commands import children_of
from warmpath.cli import check_config
from warmpath.lab.bench.stand.servers import Python
from warmpath.lab.local.ports import HeldPorts

TEXT = "a prompt of some blocks, which an engine keeps " * 20
NO_ENVOY = (
    "import sys; sys.prefix = '/nowhere'; from warmpath.cli.main import main; sys.exit(main())"
)


@contextmanager
def engine(address: str, model: Path, log: Path) -> Iterator[None]:
    """Run a simulated vLLM at an address, with its events at free ports."""
    options = (
        f"--listen={address}", f"--tokenizer={model}", "--model=m", "--events-endpoint=tcp://127.0.0.1:*",
        "--replay-endpoint=tcp://127.0.0.1:*", "--vocab-size=2048", "--speed=1000",
    )  # fmt: skip
    with Python("warmpath.lab.simworker", *options, log=log) as process:
        process.hear()
        yield


class Command:
    """A command that runs, and the lines that it prints."""

    def __init__(self, *words: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            (sys.executable, *words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=environment or None,
        )  # fmt: skip
        self.said: list[str] = []

    def hear(self, pattern: str) -> re.Match[str]:
        """Return the match of the first line from here on that has the pattern."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line)
            if found := re.search(pattern, line):
                return found
        raise AssertionError("".join(self.said))

    def end(self, how: signal.Signals) -> None:
        children = children_of(self.process.pid, b"")
        self.process.send_signal(how)
        assert self.process.wait(60) == 0
        assert not [one for one in children if Path(f"/proc/{one}").exists()]


@contextmanager
def running(*words: str, **environment: str) -> Iterator[Command]:
    command = Command(*words, **environment)
    with command.process:
        try:
            yield command
        finally:
            command.process.kill()


def chat(address: str) -> http.client.HTTPMessage:
    """Ask for an answer to TEXT; return the response's headers."""
    body = {"model": "m", "max_tokens": 2, "messages": [{"role": "user", "content": TEXT}]}
    request = urllib.request.Request(
        f"http://{address}/v1/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return response.headers  # type: ignore[no-any-return]


def test_engines_addresses_are_all_that_a_gateway_needs(
    tmp_path: Path, model_folder: Path, held_ports: HeldPorts
) -> None:
    first, second = (f"127.0.0.1:{held_ports.take()}" for _ in range(2))
    log, file = tmp_path / "engines.log", tmp_path / "router.toml"
    with ExitStack() as stack:
        stack.enter_context(engine(first, model_folder, log))
        words = (f"--engine=http://{first}", f"--engine=http://{second}", f"--out={tmp_path}")
        command = stack.enter_context(
            running("-m", "warmpath.cli", "gateway", "--listen=127.0.0.1:0", *words)
        )
        address = command.hear(r"Envoy listens on (\S+)")[1]
        assert f"  {second}  away: nothing listens there" in "".join(command.said)
        assert f"  {first}  vLLM 0.32.0, m: exact\n" in command.said
        assert chat(address)["x-warmpath-pod"] == first
        stack.enter_context(engine(second, model_folder, log))
        # Envoy may have the pod before or after its line.
        told = {command.hear(rf"(taken in|pods): .*{second}")[1] for _ in range(2)}
        assert told == {"taken in", "pods"}
        assert f"taken in: {second}  vLLM 0.32.0, m: exact\n" in command.said
        again = chat(address)
        assert again["x-warmpath-pod"] == first
        assert int(again["x-warmpath-cached-tokens"]) > 300
        command.end(signal.SIGINT)
        assert check_config.main([str(file)]) == 0


@pytest.mark.deep
def test_without_an_envoy_the_router_of_the_file_is_served_alone(
    tmp_path: Path, model_folder: Path, held_ports: HeldPorts
) -> None:
    first, gone = (f"127.0.0.1:{held_ports.take()}" for _ in range(2))
    out = f"--out={tmp_path}"
    with engine(first, model_folder, tmp_path / "engine.log"):
        with running("-m", "warmpath.cli", "serve", out, f"--engine=http://{first}") as asked:
            asked.hear(f"{first}  vLLM 0.32.0, m: exact")
            asked.end(signal.SIGTERM)
        file = tmp_path / "router.toml"
        pod = f'[[pods]]\nid = "gone"\nmodel = "m"\naddress = "{gone}"\n'
        file.write_text(file.read_text() + pod)
        words = ("-c", NO_ENVOY, "gateway", f"--config={file}", out)
        with running(*words, PATH="/nowhere") as command:
            command.hear("no Envoy: .* To get it: pip install")
            said = "".join(command.said)
            assert f"  {first}  vLLM 0.32.0, m: exact" in said
            assert f"  {gone}  away: nothing listens there" in said
            command.end(signal.SIGTERM)
