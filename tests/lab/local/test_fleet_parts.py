"""A local cluster's parts: its options' bounds, children that end with it, ports that it holds."""

import asyncio
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc.aio
import pytest
import zmq

from warmpath.cli.child import bound
from warmpath.lab.fleet.command import MOST, main
from warmpath.lab.local.ports import HeldPorts


@pytest.mark.parametrize(("name", "most"), MOST.items())
@pytest.mark.parametrize("beyond", [0, 1])
def test_numbers_that_no_machine_should_start_are_refused(
    tmp_path: Path, name: str, most: int, beyond: int, capsys: pytest.CaptureFixture[str]
) -> None:
    number = most + beyond if beyond else 0
    out = tmp_path / "out"
    assert main([f"--{name}={number}", f"--out={out}"]) == 2
    assert f"fleet: --{name} is {number}, not 1 to {most}" in capsys.readouterr().err
    assert not out.exists()


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="asks Linux's kernel")
PARENT = """
import asyncio, sys
from pathlib import Path
from warmpath.cli.child import Process

async def main():
    child = Process("a child", Path(sys.argv[1]))
    await child.start("http.server", "--bind", "127.0.0.1", "0")
    print(child._process.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@LINUX
def test_a_child_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path / "log")]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        assert not select.select([child], [], [], 0)[0]
        parent.send_signal(signal.SIGKILL)
    ended, _, _ = select.select([child], [], [], 60)
    os.close(child)
    assert ended


@LINUX
def test_a_child_whose_parent_has_ended_meanwhile_does_not_begin() -> None:
    words = bound([sys.executable, "-c", "print('begun')"])
    words[words.index(str(os.getpid()))] = "1"
    assert subprocess.run(words, check=True, capture_output=True).stdout == b""


@pytest.fixture
def ports() -> Iterator[HeldPorts]:
    with HeldPorts() as held:
        yield held


def listen(port: int, host: str = "127.0.0.1") -> socket.socket:
    """Listen as servers do."""
    return socket.create_server((host, port))


def free_at(host: str, ports: HeldPorts) -> int:
    """Return a held port that no other program has at any other address of `host`."""
    while True:
        port = ports.take()
        with contextlib.suppress(OSError), listen(port, host):
            return port


def test_whoever_asks_for_any_port_gets_another(ports: HeldPorts) -> None:
    port = ports.take()
    with HeldPorts() as others:
        assert port not in {others.take() for _ in range(500)}


def test_whoever_wants_that_port_alone_is_refused(ports: HeldPorts) -> None:
    port = ports.take()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))


def test_a_connection_is_refused_until_the_server_listens(ports: HeldPorts) -> None:
    port = ports.take()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    with listen(port), socket.create_connection(("127.0.0.1", port)):
        pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_server_may_listen_there_again(ports: HeldPorts, host: str) -> None:
    port = free_at(host, ports)
    for _ in range(2):
        with listen(port, host), socket.create_connection(("127.0.0.1", port)):
            pass


def test_two_servers_do_not_get_it_both(ports: HeldPorts) -> None:
    port = ports.take()
    with listen(port), pytest.raises(OSError, match="in use"):
        listen(port)


async def test_a_zmq_socket_and_several_grpc_servers_bind_there(ports: HeldPorts) -> None:
    with zmq.Context() as context, context.socket(zmq.PUB) as publisher:
        publisher.bind(f"tcp://*:{ports.take()}")
    port = ports.take()
    servers = [grpc.aio.server(options=[("grpc.so_reuseport", 1)]) for _ in range(2)]
    for server in servers:
        assert server.add_insecure_port(f"127.0.0.1:{port}") == port
        await server.start()
    await asyncio.gather(*(server.stop(None) for server in servers))


def test_ports_beyond_are_held_too(ports: HeldPorts) -> None:
    first = ports.take(1, 2)
    for port in (first, first + 1, first + 2):
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))


def test_a_run_that_another_is_in_is_not_taken(ports: HeldPorts) -> None:
    taken = {ports.take() for _ in range(100)}
    for _ in range(100):
        first = ports.take(1, 2)
        assert not taken & {first, first + 1, first + 2}
        taken |= {first, first + 1, first + 2}


def test_what_was_held_is_anyones_at_the_end() -> None:
    with HeldPorts() as ports:
        port = ports.take()
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
