"""The configuration of a fleet: what was asked of engines in, the router's tables and their file out."""

import socket
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec

from warmpath.cli.engines.ask import EVENTS_PATH, Away, Found
from warmpath.cli.engines.place import Place
from warmpath.process.address import HostPort
from warmpath.router.config.schema import Config, ModelSpec, PodSetSpec, PodSpec, ServerTable
from warmpath.router.config.write import as_toml

LOOPBACK = "127.0.0.1"


class Asked(NamedTuple):
    """A place, and what its engines answered."""

    place: Place
    answers: tuple[Found | Away, ...]

    @property
    def found(self) -> list[Found]:
        """The engines that answered."""
        return [one for one in self.answers if isinstance(one, Found)]

    @property
    def odd(self) -> list[Found]:
        """Engines of a set that differ from its first one, by which all are configured."""
        return [one for one in self.found if _traits(one) != _traits(self.found[0])]


def _traits(one: Found) -> tuple[object, ...]:
    return one.kind, one.model, len(one.ranks), one.told.block_size, one.at.port


def configuration(asked: Sequence[Asked], server: ServerTable, tokenizer: str = "") -> Config:
    """Return the configuration of a router for the engines that answered, at least one.

    `tokenizer` is the folder for models some of whose engines make no tokens of texts or chats.
    """
    there = [one for one in asked if one.found]
    # Models without a tokenizer have their pods' /tokenize.
    aliases: dict[str, dict[str, None]] = {}
    lacking = set()
    for found in (found for one in there for found in one.found):
        aliases.setdefault(found.model, {}).update(dict.fromkeys(found.aliases))
        if not (found.makes_tokens and found.renders_chats):
            lacking.add(found.model)
    return Config(
        models=[
            ModelSpec(name=name, aliases=[*more], tokenizer=tokenizer if name in lacking else "")
            for name, more in aliases.items()
        ],
        server=server,
        pods=[_pod(one) for one in there if one.place.pods is None],
        pod_sets=[_pod_set(one) for one in there if one.place.pods is not None],
    )


def _pod(one: Asked) -> PodSpec:
    [found] = one.found
    at, ports = found.at, found.ports
    events = f"tcp://{HostPort(at.host, ports.events)}" if ports.events else ""
    replay = f"tcp://{HostPort(at.host, ports.replay)}" if ports.replay else ""
    if found.kind.is_polled:
        events = f"{'https' if one.place.https else 'http'}://{at}{EVENTS_PATH}"
    return PodSpec(
        id=str(at), model=found.model, address=str(at), https=one.place.https,
        key_file=one.place.key_file,
        engine=found.kind.name, events=events, replay=replay,
        ranks=len(found.ranks), first_rank=found.ranks[0],
    )  # fmt: skip


def _pod_set(one: Asked) -> PodSetSpec:
    found, pods = one.found[0], one.place.pods
    assert pods is not None
    return msgspec.structs.replace(
        pods, model=found.model, key_file=one.place.key_file, engine=found.kind.name,
        # A polled engine has its events where it serves requests; any port but 0 says that it has them.
        events_port=found.ports.events or pods.events_port * found.kind.is_polled,
        replay_port=found.ports.replay, ranks=len(found.ranks), first_rank=found.ranks[0],
    )  # fmt: skip


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """Return whether a process can listen at a port."""
    with closing(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((host, port))
        except OSError:
            return False
    return True


def free_server() -> ServerTable:
    """Return the router's listeners: the usual ones, or free ports where another process has those."""
    usual = ServerTable()
    listen, page = (
        one if is_free(HostPort.of(one).port) else f"{LOOPBACK}:0"
        for one in (usual.listen, usual.metrics_listen)
    )
    return ServerTable(listen=listen, metrics_listen=page)


def write(config: Config, file: Path, command: str) -> None:
    """Write a configuration to a file; the earlier one, if it says something else, gets `.old` appended.

    `command` is the command that the file's first line names.
    """
    head = f"# Written by `warmpath {command} --engine …`; `warmpath {command} --config` starts from it."
    text = f"{head}\n{as_toml(config)}"
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.exists() and file.read_text(encoding="utf-8") != text:
        file.replace(file.with_name(f"{file.name}.old"))
    file.write_text(text, encoding="utf-8")
