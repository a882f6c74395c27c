"""Opens connections to Redis, over TLS too, with redis-py, which nothing else in `indexer` uses."""

import asyncio
import contextlib
import os
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import hiredis
from redis.asyncio.connection import Connection, DefaultParser, SSLConnection
from redis.exceptions import ResponseError

from warmpath.indexer.shared.redis.address import ACCESS, Address, RedisKind, contradictions, parse
from warmpath.indexer.shared.redis.client import RedisClient
from warmpath.indexer.shared.redis.command import (
    NO_CONNECTION,
    TLS_HINT,
    Argument,
    CommandRefusedError,
    Reply,
    UnreachableError,
)
from warmpath.indexer.shared.redis.node import Node, Wire
from warmpath.indexer.shared.redis.topology import Cluster, SentinelMaster, Topology
from warmpath.process.address import HostPort
from warmpath.process.command_line import PLAIN_THERE, in_words
from warmpath.process.reread import read_bytes
from warmpath.process.tls import TlsPaths

CONNECT_SECONDS = 2.0
"""How long a connection may take, with TLS and logging in."""
MAX_MESSAGE = 300
_WRAPPED = re.compile(
    r"(?:ERR Error running script .*?: )?(?:@user_script: ?\d+: ){1,2}-?([A-Z]{2,} .*)"
)
_CONNECTING = re.compile(r"Error (-?\d+) connecting to \S+\. (.*?)\.?")
_PLAIN_THERE = re.compile("|".join(PLAIN_THERE))
_HTTP_THERE = re.compile(r'Protocol error, got "H"')
_TLS_THERE = re.compile(r'Connection (closed by server|lost|reset)|Protocol error, got "\\x15"')


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """The settings of connections. Files are read again for each one, so that they can be renewed."""

    url: str
    """The address of Redis, in a form of `address.parse`."""
    user: str = ""
    """ACL user; empty: the default user."""
    password_file: str = ""
    """File that holds the password; white space around it is left out."""
    ca: str = ""
    """PEM file of the authorities that may vouch for the servers; empty: the system's."""
    cert: str = ""
    """PEM file of a client certificate, with its chain."""
    key: str = ""
    """PEM file of the private key of `cert`."""
    named: str = ""
    """The prefix of these settings' names where users give them ("--redis-"), for errors."""


class SettingsError(ValueError):
    """Settings that contradict each other, or name a file that cannot be read."""


async def connect(settings: RedisSettings) -> RedisClient:
    """Return a client of `settings.url`, which connects on first use and after each lost connection.

    Raises AddressError or SettingsError.
    """
    address = parse(settings.url, named=settings.named)
    _check(settings, address)
    client = RedisClient(named=settings.named, tls=address.tls)
    dial = partial(_dial, settings, tls=address.tls, log_in=True)
    places, disrupted = address.places, client.disrupted
    match address.kind:
        case RedisKind.CLUSTER:
            client.topology = Cluster(places, dial, disrupted)
        case RedisKind.SENTINEL:
            # Without logging in: the ACL user is for servers only.
            ask = partial(_dial, settings, tls=address.tls, log_in=False)
            client.topology = SentinelMaster(address.master, places, dial, ask, disrupted)
        case RedisKind.STANDALONE:
            [place] = places
            client.topology = Topology(Node(str(place), partial(dial, place), disrupted))
    return client


def _check(settings: RedisSettings, address: Address) -> None:
    access = {name: getattr(settings, name) for name in ACCESS}
    named = settings.named
    for name, problem in contradictions(address, access, named=named):
        raise SettingsError(f"{named}{name}: {problem}")
    for name in ("ca", "cert", "key", "password_file"):
        try:
            if access[name]:
                read_bytes(Path(access[name]))
        except OSError as error:
            problem = f"{access[name]} cannot be read: {error.strerror}"
            raise SettingsError(f"{named}{name.replace('_', '-')}: {problem}") from error
    if address.tls:
        _tls(settings)


def _tls(settings: RedisSettings) -> ssl.SSLContext:
    files = (settings.ca, settings.cert, settings.key)
    try:
        return TlsPaths(*(file or None for file in files)).context(ssl.Purpose.SERVER_AUTH)
    except OSError as error:
        named = settings.named
        raise SettingsError(f"{named}ca, {named}cert or {named}key: {error}") from error


async def _dial(settings: RedisSettings, place: HostPort, *, tls: bool, log_in: bool) -> Wire:
    options: dict[str, Any] = {
        "host": place.host,
        "port": place.port,
        "socket_timeout": None,
        "socket_connect_timeout": CONNECT_SECONDS,
        "parser_class": _Parser,
        "protocol": 2,
        "driver_info": None,
    }
    try:
        if log_in and settings.password_file:
            options |= {"username": settings.user or None, "password": _password(settings)}
        connection: _Plain | _Tls
        if tls:
            connection = _Tls(**options)
            connection.ssl_context.context = _tls(settings)
        else:
            connection = _Plain(**options)
    except (OSError, SettingsError) as error:
        raise UnreachableError(str(error)) from error
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await connection.connect()  # type: ignore[no-untyped-call]
    except BaseException as error:
        await connection.close()
        if isinstance(error, ResponseError):
            raise _refused(error) from None
        if isinstance(error, TimeoutError):
            raise UnreachableError(f"{NO_CONNECTION} {CONNECT_SECONDS:g} s") from None
        if isinstance(error, Exception):
            raise UnreachableError(connection.why(error)) from error
        raise
    return connection


def _password(settings: RedisSettings) -> str:
    file = settings.password_file
    named = f"{settings.named}password-file: {file}"
    try:
        password = read_bytes(Path(file)).decode().strip()
    except UnicodeDecodeError:
        # Its text would show a part of the password.
        raise SettingsError(f"{named} is not UTF-8") from None
    if not password:
        raise SettingsError(f"{named} is empty")
    return password


class _Parser(DefaultParser):  # type: ignore[misc, valid-type]
    """Gives the server's errors no types of their own: all are refusals, and none ends a connection."""

    EXCEPTION_CLASSES: dict[str, Any] = {}  # noqa: RUF012 - the base class has it so


class _Plain(Connection):
    """Implements `node.Wire`: a connection that can be closed at once.

    redis-py itself closes only after everything is sent: while a server stands still, unsent data would
    stay, and under TLS also the socket, for half a minute.

    Any error of it is a lost connection. A transport that is closed while it is used raises OSError, and
    uvloop's RuntimeError, asyncio's AttributeError, or whatever the layer of TLS makes of it.
    """

    transport: asyncio.WriteTransport | None = None
    was_answered = False

    async def _connect(self) -> None:
        await super()._connect()  # type: ignore[no-untyped-call]
        assert self._writer is not None
        self.transport = self._writer.transport

    @property
    def is_open(self) -> bool:
        return bool(self.is_connected)

    async def send(self, commands: Sequence[tuple[Argument, ...]]) -> None:
        """Write commands. redis-py hands all of them to the transport before it first waits."""
        if not self.is_open:
            raise UnreachableError("the connection is closed")
        packed = [hiredis.pack_command(words) for words in commands]  # type: ignore[arg-type]
        try:
            await self.send_packed_command(packed, check_health=False)
        except BaseException as error:
            self._abort()
            if isinstance(error, Exception):
                raise UnreachableError(self.why(error)) from error
            raise

    async def receive(self) -> Reply:
        try:
            reply = await self.read_response(disconnect_on_error=False)
        except ResponseError as error:
            reply = _refused(error)
        except Exception as error:
            raise UnreachableError(self.why(error)) from error
        self.was_answered = True
        return reply

    def why(self, error: Exception) -> str:
        """Return why a server did not answer, without its address, which callers add."""
        text = _line(error)
        return text if self.was_answered else _unanswered(text, tls=isinstance(self, _Tls))

    async def is_dirty(self) -> bool:
        try:
            return bool(await self.can_read())
        except Exception:  # noqa: BLE001 - any error means that it is closed
            return True

    async def close(self, *, wait: bool = False) -> None:
        if self.is_open and self.transport and self.transport.get_write_buffer_size():
            self._abort()
        with contextlib.suppress(Exception):
            await self.disconnect(nowait=not wait)
        if not wait:
            self._abort()

    def _abort(self) -> None:
        # A transport that is closed need not be aborted, and some cannot be: in Python 3.11.2 (Debian
        # 12) one under TLS that was closed twice.
        with contextlib.suppress(Exception):
            if self.transport is not None:
                self.transport.abort()


class _Tls(SSLConnection, _Plain):
    """A connection under TLS that can be closed at once."""


def _refused(error: ResponseError) -> CommandRefusedError:
    text = _line(error)
    # Redis 6.2 wraps the refusal of a command in a script, twice where the refusal ends the script.
    wrapped = _WRAPPED.fullmatch(text)
    return CommandRefusedError(wrapped[1] if wrapped else text)


def _unanswered(text: str, *, tls: bool) -> str:
    """Return why a server did not answer at all."""
    if match := _CONNECTING.fullmatch(text):
        number, text = int(match[1]), match[2]
        if text.startswith("Connect call failed"):
            text = in_words(OSError(number, os.strerror(number)))
    if _HTTP_THERE.search(text):
        return "an HTTP server answers there, no Redis"
    if tls and _PLAIN_THERE.search(text):
        text += f" ({TLS_HINT})"
    if not tls and _TLS_THERE.search(text):
        text += f" ({TLS_HINT} then the URL begins with rediss)"
    return text


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:MAX_MESSAGE] or type(error).__name__
