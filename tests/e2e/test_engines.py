"""`warmpath gateway --engine`: two commands to one's own fleet, with simulated engines and the real Envoy."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import grpc
import msgspec
import pytest

from tests.e2e.test_commands import children_of
from warmpath.cli import check_config, doctor
from warmpath.cli.engines.written import write
from warmpath.lab.bench.stand.servers import Python, until
from warmpath.lab.local.ports import HeldPorts
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc
from warmpath.router.config.read import load
from warmpath.router.config.schema import ServerTable

TEXT = "a prompt of some blocks, which an engine keeps " * 20
NO_ENVOY = (
    "import sys; sys.prefix = '/nowhere'; from warmpath.cli.main import main; sys.exit(main())"
)


@contextmanager
def engine(address: str, model: Path, log: Path, *more: str) -> Iterator[None]:
    """Run a simulated vLLM at an address, with its events at free ports unless `more` options say else."""
    options = (
        f"--listen={address}", f"--tokenizer={model}", "--model=m", "--events-endpoint=tcp://127.0.0.1:*",
        "--replay-endpoint=tcp://127.0.0.1:*", "--vocab-size=2048", "--speed=1000",
        *more,
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


class Chat(NamedTuple):
    """An answer to TEXT."""

    headers: http.client.HTTPMessage
    cached: int
    """The tokens of the prompt that the engine says it found."""


def asked(address: str, key: str = "") -> Chat:
    """Ask for an answer to TEXT."""
    body = {"model": "m", "max_tokens": 2, "messages": [{"role": "user", "content": TEXT}]}
    request = urllib.request.Request(
        f"http://{address}/v1/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json", "authorization": f"Bearer {key}"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        usage = json.load(response)["usage"]
        return Chat(response.headers, usage["prompt_tokens_details"]["cached_tokens"])


def asked_to_its_end(address: str, router: str) -> Chat:
    """Ask, and wait until the router knows that the answer has ended."""
    answer = asked(address)
    with grpc.insecure_channel(router) as channel:
        stub = router_pb2_grpc.RouterStub(channel)

        def has_ended() -> bool:
            found = stub.ListDecisions(pb.ListDecisionsRequest()).decisions
            return all(one.state == pb.Decision.FINISHED for one in found)

        until(has_ended, "the router learns of the end")
    return answer


def chat(address: str) -> http.client.HTTPMessage:
    """Ask for an answer to TEXT; return the response's headers."""
    return asked(address).headers


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
        words = ("serve", out, f"--engine=http://{first}", "--shadow", "--log-level=error")
        with running("-m", "warmpath.cli", *words) as asked:
            asked.hear("in shadow, it decides nothing")
            asked.hear(r"warmpath serve --config \S+ --shadow --log-level=error$")
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


NO_EVENTS = ("--events-endpoint=inproc://e", "--replay-endpoint=inproc://r")
AWAY = {
    "events": (
        NO_EVENTS, "approximate: it sends no events", "For exact start it with --kv-events-config",
        "start it with --kv-events-config", "no-events: m: 2 of its 2 pods send no events",
    ),
    "replay": (
        NO_EVENTS[1:], "exact: but it has no replay", "add replay_endpoint to its --kv-events-config",
        "and set events = ", "replay: there is none, so that a gap in the events stays open",
    ),
    "tokenizer": (
        ("--without=tokenize",), "approximate: texts are matched by their bytes, as it has no /tokenize",
        "start this command with --tokenizer FOLDER", "set `tokenizer` of its [[models]] in",
        "/tokenize: answers HTTP 404",
    ),
    "template": (
        ("--without=tokenize-chats",), "exact: but for chats, matched by their bytes",
        "start this command with --tokenizer FOLDER", "set `tokenizer` of its [[models]] in",
        "its /tokenize takes no chats, or it has no chat template",
    ),
    "metrics": (
        ("--without=metrics",), "exact: but it serves no /metrics", "start it without --disable-log-stats",
        "start it without --disable-log-stats", "its load is not known",
    ),
}  # fmt: skip
"""By the part that is taken away: the engines' options, the lack that is said, the remedy on the first and
on the second day, and a part of the doctor's sentence."""


@pytest.mark.deep
@pytest.mark.parametrize("part", AWAY)
def test_a_part_that_engines_lack_is_said_with_the_way_to_get_it_on_both_days(
    part: str,
    tmp_path: Path,
    model_folder: Path,
    held_ports: HeldPorts,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options, lack, remedy, later, finding = AWAY[part]
    both = [f"127.0.0.1:{held_ports.take()}" for _ in range(2)]
    command = ("-m", "warmpath.cli", "gateway", "--listen=127.0.0.1:0", f"--out={tmp_path}")
    file = tmp_path / "router.toml"
    with ExitStack() as stack:
        for one in both:
            stack.enter_context(engine(one, model_folder, tmp_path / "engines.log", *options))
        with running(*command, *(f"--engine=http://{one}" for one in both)) as first:
            router = first.hear(r"the router serves gRPC on (\S+);")[1]
            for one in both:
                assert remedy in first.hear(f"  {one}  vLLM 0.32.0, m: {lack}.*")[0]
            address = first.hear(r"Envoy listens on (\S+)")[1]
            # The first one shows how large blocks are, by which beliefs are kept from then on.
            _, before, again = (asked_to_its_end(address, router) for _ in range(3))
            assert again.headers["x-warmpath-pod"] == before.headers["x-warmpath-pod"]
            assert again.cached > 300
            doctor.main([f"--router={router}", f"--config={file}"])
            assert finding in " ".join(capsys.readouterr().out.split())
            first.end(signal.SIGINT)
        # Another router of this machine may have the usual ports by now.
        free = ServerTable(listen="127.0.0.1:0", metrics_listen="127.0.0.1:0")
        write(msgspec.structs.replace(load(file), server=free), file, "gateway")
        with running(*command, f"--config={file}") as second:
            for one in both:
                assert later in second.hear(f"  {one}  vLLM 0.32.0, m: {lack}.*")[0]
            second.end(signal.SIGINT)


@pytest.mark.deep
def test_what_is_taken_away_while_a_gateway_runs_is_said_until_it_is_back(
    tmp_path: Path, model_folder: Path, held_ports: HeldPorts
) -> None:
    both = [f"127.0.0.1:{held_ports.take()}" for _ in range(2)]
    key = tmp_path / "key"
    key.write_text("old")
    events = {
        one: [
            f"--{name}-endpoint=tcp://127.0.0.1:{held_ports.take()}"
            for name in ("events", "replay")
        ]
        for one in both
    }

    def started(address: str, *options: str) -> ExitStack:
        stack = ExitStack()
        stack.enter_context(engine(address, model_folder, tmp_path / "engines.log", *options))
        return stack

    words = ("-m", "warmpath.cli", "gateway", "--listen=127.0.0.1:0", f"--out={tmp_path}")
    words += (*(f"--engine=http://{one}" for one in both),)
    with ExitStack() as stack:
        engines = {one: started(one, "--api-key=old", *events[one]) for one in both}
        for one in both:
            stack.callback(lambda one=one: engines[one].close())
        with running(*words) as without:
            without.hear(
                rf"{both[0]}: /v1/models answers 401; it wants an API key: .* --api-key-file FILE"
            )
        command = stack.enter_context(running(*words, f"--api-key-file={key}"))
        address = command.hear(r"Envoy listens on (\S+)")[1]
        pod = asked(address, "old").headers["x-warmpath-pod"]
        [other] = {*both} - {pod}
        engines[pod].close()
        command.hear(rf"ready: m {pod}: it is not ready: .*nothing listens there")
        assert asked(address, "old").headers["x-warmpath-pod"] == other
        engines[pod] = started(pod, "--api-key=old", *NO_EVENTS)
        ports = [one.rpartition(":")[2] for one in events[pod]]
        command.hear(
            rf"ready: m {pod}: its events are not connected .* Do this: start it with `--kv-events-config "
            rf".*{ports[0]}.*{ports[1]}"
        )
        engines[pod].close()
        engines[pod] = started(pod, "--api-key=old")
        # Its ports are free ones now, which the router learns. The finding may end before or after; on a
        # busy machine its events may be late at first.
        back, seen = rf"taken in: {pod}  vLLM 0.32.0, m: |ready: m {pod}: no longer", set[str]()
        while len(seen) < 2:
            seen.add(command.hear(back)[0])
        engines[other].close()
        engines[other] = started(other, "--api-key=new", *events[other])
        command.hear(
            rf"key: m {other}: .* the engine refuses the key in {key}: put its API key into that file"
        )
        key.write_text("new")
        command.hear(rf"key: m {other}: no longer")
        command.end(signal.SIGTERM)


@pytest.mark.deep
def test_a_router_that_dies_is_started_again_and_open_answers_do_not_break(
    tmp_path: Path, model_folder: Path, held_ports: HeldPorts
) -> None:
    first, router = (f"127.0.0.1:{held_ports.take()}" for _ in range(2))
    file = tmp_path / "router.toml"
    file.write_text(
        f'[server]\nlisten = "{router}"\nmetrics-listen = ""\n[[models]]\nname = "m"\n'
        f'tokenizer = "{model_folder}"\n[[pods]]\nid = "one"\nmodel = "m"\naddress = "{first}"\n'
    )
    body = {"model": "m", "max_tokens": 100, "stream": True, "ignore_eos": True, "prompt": TEXT}
    with ExitStack() as stack:
        log = tmp_path / "engine.log"
        stack.enter_context(engine(first, model_folder, log, "--stream-interval=1", "--speed=1"))
        words = ("gateway", f"--config={file}", "--listen=127.0.0.1:0", f"--out={tmp_path}")
        command = stack.enter_context(running("-m", "warmpath.cli", *words))
        address = command.hear(r"Envoy listens on (\S+)")[1]
        request = urllib.request.Request(
            f"http://{address}/v1/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.readline().startswith(b"data: {")
            [own] = children_of(command.process.pid, b"\0serve\0")
            os.kill(own, signal.SIGKILL)
            command.hear("the router ended with -9.*: it is started again")
            assert b"data: [DONE]\n" in answer.readlines()
        until(lambda: _is_well(address), "the gateway has a router again")
        os.kill(*children_of(command.process.pid, b"\0serve\0"), signal.SIGKILL)
        assert command.process.wait(60) == 1


def _is_well(address: str) -> bool:
    try:
        return asked(address).headers["x-warmpath-pod"] == "one"
    except urllib.error.HTTPError:
        return False
