"""The ports of an engine's events and replay, which no engine but SGLang tells over HTTP.

On this machine they are among those at which the engine's own processes listen; elsewhere the ports that
the documentation names are tried. ZeroMQ's greeting (ZMTP 3, RFC 23) says what kind of socket listens:
PUB has events, ROUTER the replay. Nothing is sent to a port that does not greet first.
"""

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from warmpath.indexer.engines.kind import EVENTS, REPLAY
from warmpath.process.address import HostPort, is_loopback

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16 + 1 + 31)
SIGNATURE_BYTES, MOST_COMMAND_BYTES = 10, 512
ASK_SECONDS = 1.0
SOCKET_TYPE = re.compile(rb"Socket-Type\0\0\0.([A-Z]+)", re.DOTALL)
LISTENS = "0A"
"""The state of a listening socket in /proc/net/tcp."""
MOST_PORTS = 64


class Ports(NamedTuple):
    """The ports of an engine's rank 0; 0: there is none, or it is not known."""

    events: int = 0
    replay: int = 0
    tried: tuple[int, ...] = ()
    """Without `events`: the ports that were tried."""
    several: tuple[int, ...] = ()
    """Without `events`: ports that send events, but perhaps another engine's."""


async def find(
    at: HostPort, ranks: Sequence[int], told: Mapping[str, object] | None, *, is_alone: bool
) -> Ports:
    """Return the ports of the engine at an address; `ranks` are the numbers of its ranks.

    `told` is the engine's own configuration of events. Usual ports count only if the engine `is_alone`
    at its host: of several there, nothing would tell whose they are.
    """
    first = ranks[0]
    named = [port for key in ("endpoint", "replay_endpoint") if (port := _port(told or {}, key))]
    own = await asyncio.to_thread(own_ports, at.port) if is_loopback(str(at)) else None
    usual = [EVENTS + first, REPLAY + first] if is_alone else []
    tried = [port + first for port in named] or (usual if own is None else own)
    kinds = await asyncio.gather(*(kind_of(HostPort(at.host, port)) for port in tried[:MOST_PORTS]))
    found = list(zip(kinds, tried, strict=False))
    events = [port for kind, port in found if kind == "PUB"]
    replay = [port for kind, port in found if kind == "ROUTER"]
    if not events:
        return Ports(tried=tuple(tried))
    # Each rank has the next port.
    if not named and events != list(range(events[0], events[0] + len(ranks))):
        return Ports(tried=tuple(tried), several=tuple(events))
    # The configuration names rank 0's ports.
    return Ports(events[0] - first, max(0, replay[0] - first) if replay else 0)


def _port(told: Mapping[str, object], key: str) -> int:
    try:
        return urlsplit(str(told.get(key) or "").replace("*", "all")).port or 0
    except ValueError:
        return 0


async def kind_of(at: HostPort) -> str:
    """Return the type of the ZeroMQ socket that listens at an address; empty if there is none."""
    writer = None
    try:
        async with asyncio.timeout(ASK_SECONDS):
            reader, writer = await asyncio.open_connection(at.host, at.port)
            signature = await reader.readexactly(SIGNATURE_BYTES)
            if signature[0] != GREETING[0] or signature[-1] != 0x7F:
                return ""
            writer.write(GREETING)
            await reader.readexactly(len(GREETING) - SIGNATURE_BYTES)
            answer = b""
            while len(answer) < MOST_COMMAND_BYTES:
                answer += await reader.read(MOST_COMMAND_BYTES)
                if found := SOCKET_TYPE.search(answer):
                    return found[1].decode()
                if reader.at_eof():
                    return ""
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return ""
    finally:
        if writer is not None:
            writer.close()
    return ""


def own_ports(port: int, proc: Path = Path("/proc")) -> list[int] | None:
    """Return the other ports at which the processes that listen at a port, and their children, listen.

    None where it is not known which processes those are: without Linux, or if they are another user's.
    """
    listening = dict(_listening(proc))
    sockets = {
        pid: held for pid in _pids(proc) if (held := set(_sockets(proc, pid)) & {*listening})
    }
    parents = {pid: _parent(proc, pid) for pid in _pids(proc)}
    family = {pid for pid, held in sockets.items() if any(listening[one] == port for one in held)}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    if not family:
        return None
    ports = {listening[one] for pid in family & {*sockets} for one in sockets[pid]}
    return sorted(ports - {port})


def _listening(proc: Path) -> Iterator[tuple[str, int]]:
    """Yield the inode and the port of each listening socket."""
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (proc / "net" / name).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTENS:
                    yield fields[9], int(fields[1].rpartition(":")[2], 16)


def _pids(proc: Path) -> Iterable[int]:
    with suppress(OSError):
        return [int(one.name) for one in proc.iterdir() if one.name.isdecimal()]
    return []


def _sockets(proc: Path, pid: int) -> Iterator[str]:
    """Yield the inodes of a process's sockets."""
    with suppress(OSError):
        for one in (proc / str(pid) / "fd").iterdir():
            with suppress(OSError):
                target = str(one.readlink())
                if target.startswith("socket:["):
                    yield target[len("socket:[") : -1]


def _parent(proc: Path, pid: int) -> int:
    with suppress(OSError, ValueError, IndexError):
        # The program's name, in parentheses, may have spaces.
        return int((proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    return 0
