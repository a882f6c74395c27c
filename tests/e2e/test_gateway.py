"""`warmpath gateway`: chats through Envoy to simulated pods with one command, and nothing left after it."""

import http.client
import http.server
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
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from tests.e2e.test_commands import children_of
from tests.fake_http import Answer, FakeHttp
from tests.router.pick_stand import QUIET, pod
from warmpath.lab.bench.stand.servers import Python


@dataclass
class Started:
    process: "subprocess.Popen[str]"
    address: str
    said: IO[str]

    @property
    def children(self) -> list[int]:
        return children_of(self.process.pid, b"")

    def asked(self, text: str, *, max_tokens: int) -> http.client.HTTPResponse:
        """Ask for a streamed answer to a chat, and return it once its headers are there."""
        body = {
            "model": "demo", "max_tokens": max_tokens, "stream": True,
            "messages": [{"role": "user", "content": text}],
        }  # fmt: skip
        url = f"http://{self.address}/v1/chat/completions"
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=60)
        return response

    def chat(self, text: str) -> tuple[dict[str, str], list[bytes]]:
        """Stream a chat to its end; return the response's headers and its events."""
        with self.asked(text, max_tokens=8) as response:
            return dict(response.headers), [one for one in response if one.strip()]


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "warmpath.cli", "gateway", "--listen=127.0.0.1:0", *options]


@contextmanager
def gateway(*options: str) -> Iterator[Started]:
    """Run the command until the context ends, at the latest."""
    process = subprocess.Popen(
        command(*options), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if found := re.match(r"Envoy listens on (\S+)", line):
                break
        else:
            raise AssertionError("it has ended")
        yield Started(process, found[1], process.stdout)
    finally:
        process.terminate()
        process.communicate(timeout=60)


@contextmanager
def router(folder: Path, tables: str, top: str = "") -> Iterator[str]:
    """Run a router; yield its address."""
    config = folder / "router.toml"
    config.write_text(
        f'{top}[server]\ndrain-delay-seconds = 0\nlisten = "127.0.0.1:0"\nmetrics-listen = ""\n'
        f'[[models]]\nname = "demo"\n{tables}'
    )
    words = ("warmpath.cli", "serve", "--config", str(config))
    with Python(*words, log=folder / "router.log") as process:
        yield process.hear().split(" on ")[1].split(",")[0].strip()


@contextmanager
def engine() -> Iterator[int]:
    """Run an engine that answers with its own port."""
    with FakeHttp(lambda _: Answer()) as server:
        port = int(server.url.rpartition(":")[2])
        server.answer = lambda _: Answer(body=json.dumps({"port": port}).encode())
        yield port


def is_there(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


@pytest.mark.deep
def test_chats_stream_through_it_and_a_killed_pods_chat_goes_to_another(tmp_path: Path) -> None:
    with gateway("--simulate=2", f"--out={tmp_path}") as started:
        text = "a prompt of some blocks, which a pod keeps " * 20
        first, events = started.chat(text)
        assert first["x-warmpath-cached-tokens"] == "0"
        assert events[-1] == b"data: [DONE]\n"
        assert len(events) > 8
        again, _ = started.chat(text)
        assert again["x-warmpath-pod"] == first["x-warmpath-pod"]
        assert int(again["x-warmpath-cached-tokens"]) > 800
        assert float(again["x-warmpath-saved-seconds"]) > 0
        pods = {"pod-1", "pod-2"}
        [other] = pods - {first["x-warmpath-pod"]}
        log = (tmp_path / f"{first['x-warmpath-pod']}.log").as_posix()
        [holder] = [one for one in started.children if writes_to(one, log)]
        os.kill(holder, signal.SIGKILL)
        moved, events = started.chat(text)
        assert moved["x-warmpath-pod"] == other
        assert events[-1] == b"data: [DONE]\n"
        ended = f"{first['x-warmpath-pod']} ended with -9"
        assert any(line.startswith(ended) for line in started.said)


def writes_to(process: int, log: str) -> bool:
    return Path(f"/proc/{process}/fd/2").readlink().as_posix() == log


@pytest.mark.deep
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_that_it_started(tmp_path: Path, how: signal.Signals) -> None:
    with gateway("--simulate=1", f"--out={tmp_path}") as started:
        children = started.children
        assert len(children) == 3
        started.process.send_signal(how)
        assert started.process.wait(60) == 0
        assert not any(map(is_there, children))
        with pytest.raises(urllib.error.URLError):
            started.chat("is anybody there?")


@pytest.mark.deep
def test_envoy_is_started_again_once_and_a_second_end_is_the_commands(tmp_path: Path) -> None:
    with gateway("--simulate=1", f"--out={tmp_path}") as started:
        children = started.children
        for said in ("Envoy ended with -9: it is started again\n", ""):
            [envoy] = children_of(started.process.pid, b"--disable-hot-restart")
            os.kill(envoy, signal.SIGKILL)
            if said:
                assert said in started.said
                assert f"Envoy listens on {started.address}\n" in started.said
                started.chat("does it serve again?")
        assert started.process.wait(60) == 1
        assert "warmpath gateway: Envoy ended with -9" in started.said.read()
        assert not any(map(is_there, children))


@pytest.mark.deep
def test_it_asks_the_router_for_its_pods_and_refuses_a_port_that_is_taken(tmp_path: Path) -> None:
    pods = pod("pod-1", "127.0.0.1:1") + pod("pod-2", "[::1]:2")
    with router(tmp_path, pods) as address, gateway(f"--router={address}") as started:
        assert "pods: 127.0.0.1:1, [::1]:2" in started.said.readline()
        curl = next(line for line in started.said if line.startswith("  curl"))
        assert '"model": "demo"' in curl
        second = command(f"--router={address}", f"--listen={started.address}")
        ended = subprocess.run(second, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == 1
        assert "warmpath gateway: Envoy ended with 1; --listen 127.0.0.1:" in ended.stderr
        assert "another process listens there; end it, or choose another" in ended.stderr


@pytest.mark.deep
def test_pods_come_and_go_with_those_of_the_router(tmp_path: Path) -> None:
    pods = tmp_path / "pods.toml"

    def listed(*ports: int) -> None:
        new = tmp_path / "new"
        new.write_text("".join(pod(f"pod-{port}", f"127.0.0.1:{port}") for port in ports))
        new.replace(pods)

    with ExitStack() as stack:
        first, second = (stack.enter_context(engine()) for _ in range(2))
        listed(first)
        address = stack.enter_context(router(tmp_path, QUIET, top=f'pods-file = "{pods}"\n'))
        started = stack.enter_context(gateway(f"--router={address}"))

        def served() -> int:
            with started.asked("by whom?", max_tokens=1) as response:
                found = json.load(response)["port"]
                assert response.headers["x-warmpath-pod"] == f"pod-{found}"
                return int(found)

        assert served() == first
        both = f"pods: {', '.join(f'127.0.0.1:{port}' for port in sorted((first, second)))}\n"
        for ports, line in (((first, second), both), ((second,), f"pods: 127.0.0.1:{second}\n")):
            listed(*ports)
            assert any(said == line for said in started.said)
        # Envoy reads the list on its own time; until then the router's pick is not known to it.
        while served() != second:
            pass
        assert {served() for _ in range(5)} == {second}


@pytest.mark.deep
@pytest.mark.parametrize("mode", ["fail-close", "fail-open"])
def test_a_response_outlives_the_router(tmp_path: Path, mode: str) -> None:
    with (
        gateway("--simulate=1", f"--out={tmp_path}", f"--failure-mode={mode}") as started,
        started.asked("a long story", max_tokens=200) as response,
    ):
        response.readline()
        [router] = children_of(started.process.pid, b"serve")
        os.kill(router, signal.SIGKILL)
        assert response.read().endswith(b"data: [DONE]\n\n")


@pytest.mark.deep
@pytest.mark.parametrize("mode", ["fail-close", "fail-open"])
def test_a_router_that_hangs_holds_up_nobody_for_ever(tmp_path: Path, mode: str) -> None:
    with gateway("--simulate=2", f"--out={tmp_path}", f"--failure-mode={mode}") as started:
        started.chat("before")
        [router] = children_of(started.process.pid, b"serve")
        os.kill(router, signal.SIGSTOP)
        try:
            for _ in range(4):
                if mode == "fail-open":
                    headers, events = started.chat("without it")
                    assert events[-1] == b"data: [DONE]\n"
                    assert "x-warmpath-pod" not in headers
                else:
                    with pytest.raises(urllib.error.HTTPError, match="503"):
                        started.chat("without it")
        finally:
            os.kill(router, signal.SIGCONT)
