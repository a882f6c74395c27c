"""Options that name engines, and their places: one, all behind a DNS name, or pods of Kubernetes."""

import argparse
import os
import re
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from warmpath.cli.tls_options import OptionError
from warmpath.process.address import HostPort
from warmpath.process.command_line import in_words
from warmpath.process.reread import read_bytes
from warmpath.router.config.check import lacks_kubernetes
from warmpath.router.config.files import EngineKeyError, read_engine_key
from warmpath.router.config.read import ConfigError, load
from warmpath.router.config.schema import Config, ModelSpec, PodSetSpec
from warmpath.router.config.selector import selector_problem
from warmpath.router.pods.look import look, sources

PORT = 8000
MOST_FILE_BYTES = 1 << 20
MOST_PLACES = 4096
LOOK_SECONDS = 10.0
UNKNOWN = "unknown"
"""Stands for a set's model before one of its engines has named it."""
OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
SELECTOR = re.compile(
    r"(?:(?P<namespace>[a-z0-9-]{1,63})/)?(?P<labels>[^:]{1,1024})(?::(?P<port>\d{1,5}))?"
)


class PlaceError(ValueError):
    """A text names no place; the message says why."""


class Place(NamedTuple):
    """Engines that an option or a configuration names together: one engine, or a set of pods."""

    name: str
    """As the user wrote it, without a scheme."""
    https: bool = False
    address: HostPort | None = None
    """The one engine's; None for a set."""
    pods: PodSetSpec | None = None
    """The set, whose addresses come and go; None for one engine."""
    key_file: str = ""
    """The file with its engines' API key; empty: they need none."""
    is_configured: bool = False
    """Whether it is of an existing configuration; otherwise one is written."""
    events: str = ""
    """In a configuration, the endpoint of rank 0's events; empty: none."""
    replay: str = ""
    """Likewise of the replay."""
    is_published: bool = False
    """Whether a publisher or the shared index brings its events."""

    def addresses(self) -> list[HostPort]:
        """Return the engines' addresses now; this may wait for LOOK_SECONDS. Raises PlaceError."""
        if self.address is not None:
            return [self.address]
        assert self.pods is not None
        config = Config(models=[ModelSpec(UNKNOWN)], pod_sets=[self.pods])
        [looked] = look(sources(config, Path()), LOOK_SECONDS)
        if looked.problem:
            raise PlaceError("; ".join(filter(None, (looked.problem, looked.advice))))
        return [HostPort.of(pod.address) for pod in looked.pods]


def of_url(text: str) -> Place:
    """Return the place of an URL or of host:port; without a port, PORT. Raises PlaceError."""
    try:
        url = urlsplit(text if "//" in text else f"//{text}", scheme="http")
        port = url.port
    except ValueError as error:
        raise PlaceError(f"{text!r}: {error}") from None
    is_whole = url.scheme in ("http", "https") and url.hostname and url.path in ("", "/")
    if not is_whole or url.query or url.fragment or url.username is not None:
        raise PlaceError(f"{text!r} is not http://HOST:PORT")
    return _place(url, HostPort(url.hostname or "", port if port is not None else PORT))


def _place(url: SplitResult, at: HostPort) -> Place:
    https = url.scheme == "https"
    if at.host == "localhost":
        return Place(str(at), https, HostPort(_loopback(at.port), at.port))
    if at.is_ip:
        return Place(str(at), https, at)
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,253}", at.host):
        raise PlaceError(f"{at.host!r} is not a host's name")
    pods = PodSetSpec(name=at.host, model=UNKNOWN, dns=at.host, port=at.port, https=https)
    return Place(str(at), https, pods=pods)


def _loopback(port: int) -> str:
    """Return the loopback address at which this machine's engine listens, of either family."""
    try:
        with socket.create_connection(("localhost", port), timeout=1.0) as connection:
            host: str = connection.getpeername()[0]
            return host
    except OSError:
        return "127.0.0.1"


def of_selector(text: str) -> Place:
    """Return the place of a label selector, `[NAMESPACE/]app=vllm[:PORT]`. Raises PlaceError."""
    found = SELECTOR.fullmatch(text)
    port = int(found["port"] or PORT) if found else 0
    if not found or not 0 < port < 1 << 16:
        raise PlaceError(f"{text!r} is not [NAMESPACE/]LABEL=VALUE[:PORT]")
    if problem := selector_problem(found["labels"]):
        raise PlaceError(f"{text!r}: {problem}")
    if problem := lacks_kubernetes():
        raise PlaceError(problem)
    name = re.sub(r"[^a-z0-9]+", "-", found["labels"].lower()).strip("-")
    pods = PodSetSpec(
        name=name, model=UNKNOWN, selector=found["labels"], port=port,
        namespace=found["namespace"] or _own_namespace(),
    )  # fmt: skip
    return Place(text, pods=pods)


def _own_namespace() -> str:
    return OWN_NAMESPACE.read_text().strip() if OWN_NAMESPACE.is_file() else "default"


def _of_file(path: Path) -> Iterator[str]:
    try:
        lines = read_bytes(path, MOST_FILE_BYTES).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        said = in_words(error) if isinstance(error, OSError) else "is not UTF-8"
        raise PlaceError(f"--engines-file: {path}: {said.removeprefix(f'{path}: ')}") from None
    yield from (line for one in lines if (line := one.partition("#")[0].strip()))


def configured(config: Config, folder: Path) -> list[Place]:
    """Return the places of a configuration's [[pods]] and [[pod-sets]]; `folder` has its file.

    Those behind an authority of their own are left out: only the router asks them.
    """
    is_shared = bool(config.shared_index.url)

    def key(file: str) -> str:
        return str(folder / file) if file else ""

    def port(number: int) -> str:
        return f"tcp://*:{number}" if number else ""

    single = [
        Place(
            pod.id, pod.https, HostPort.of(pod.address), None, key(pod.key_file),
            is_configured=True, events=pod.events, replay=pod.replay,
            is_published=is_shared or bool(pod.watch),
        )
        for pod in config.pods
        if not (pod.https and config.probe.ca)
    ]  # fmt: skip
    sets = [
        Place(
            pods.name, pods.https, None, pods, key(pods.key_file),
            is_configured=True, events=port(pods.events_port), replay=port(pods.replay_port),
            is_published=is_shared or bool(pods.watch_port),
        )
        for pods in config.pod_sets
        if not (pods.https and config.probe.ca)
    ]  # fmt: skip
    return [*single, *sets]


def places(
    engines: Sequence[str], file: Path | None, pods: Sequence[str], key_file: str = ""
) -> list[Place]:
    """Return all places that the options name, each once. Raises PlaceError, which names the option."""
    found: dict[str, Place] = {}
    texts = [
        *(("--engine", of_url, text) for text in engines),
        *(("--engines-file", of_url, text) for text in (_of_file(file) if file else ())),
        *(("--pods", of_selector, text) for text in pods),
    ]
    if len(texts) > MOST_PLACES:
        raise PlaceError(f"--engine: at most {MOST_PLACES}")
    for option, read, text in texts:
        try:
            place = read(text)
        except PlaceError as error:
            raise PlaceError(f"{option}: {error}") from None
        found.setdefault(place.name, place._replace(key_file=key_file))
    if file and not texts:
        raise PlaceError(f"--engines-file: {file} names no engine")
    return list(found.values())


OUT = Path("out")


class EngineOptions(NamedTuple):
    """The engines, or the configuration, for which a command starts a router."""

    command: str
    """`gateway` or `serve`."""
    places: list[Place]
    out: Path
    """Folder of the configuration and the router's log."""
    config: Path | None = None
    """An existing configuration, of whose engines `places` are; None: one is written."""
    tokenizer: str = ""
    """The folder of a tokenizer, for models whose engines have no /tokenize; empty: none."""
    router: tuple[str, ...] = ()
    """Further options of the router, in the words of `warmpath serve`."""


def add_engines(parser: argparse.ArgumentParser) -> None:
    """Add the options that name engines."""
    add = parser.add_argument_group("engines: start a router for them").add_argument
    add(
        "--engine", action="append", default=[], metavar="URL",
        help="http://HOST:PORT of an engine, or a name with several addresses; may be repeated",
    )  # fmt: skip
    add("--engines-file", type=Path, metavar="FILE", help="a file with such a URL on each line")
    add(
        "--pods", action="append", default=[], metavar="[NAMESPACE/]LABELS[:PORT]",
        help="pods of Kubernetes, such as app=vllm:8000; may be repeated",
    )  # fmt: skip
    add("--api-key-file", type=Path, metavar="FILE", help="a file with the engines' API key")
    add(
        "--tokenizer", type=Path, metavar="FOLDER",
        help="a folder with tokenizer.json and chat template, for engines without /tokenize",
    )  # fmt: skip


def _of_config(args: argparse.Namespace, command: str) -> EngineOptions:
    try:
        config = load(args.config, os.environ)
    except ConfigError as error:
        raise OptionError(f"--config: {error}") from None
    if config.server.tls.cert or config.clients:
        text = "has [server.tls] or [[clients]]: start `warmpath serve` with it, and give --router"
        raise OptionError(f"--config: {args.config} {text}")
    named = configured(config, args.config.parent)
    return EngineOptions(command, named, args.out or OUT, args.config)


def engine_options(args: argparse.Namespace, command: str) -> EngineOptions | None:
    """Return what the options name; None where they name neither engines nor a configuration.

    Raises OptionError.
    """
    if args.engine or args.engines_file or args.pods:
        if args.config:
            raise OptionError("--config: does not go with --engine, --engines-file or --pods")
    elif args.api_key_file or args.tokenizer:
        option = "--api-key-file" if args.api_key_file else "--tokenizer"
        raise OptionError(f"{option}: needs --engine, --engines-file or --pods")
    else:
        return _of_config(args, command) if args.config else None
    file, tokenizer = (one and one.absolute() for one in (args.api_key_file, args.tokenizer))
    if tokenizer and not (tokenizer / "tokenizer.json").is_file():
        raise OptionError(f"--tokenizer: {args.tokenizer} has no tokenizer.json")
    try:
        if file:
            read_engine_key(file)
        named = places(args.engine, args.engines_file, args.pods, str(file or ""))
    except EngineKeyError as error:
        raise OptionError(f"--api-key-file: {error}") from None
    except PlaceError as error:
        raise OptionError(str(error)) from None
    return EngineOptions(command, named, args.out or OUT, tokenizer=str(tokenizer or ""))
