"""Faults of a server that refuses commands over connections that stay: writes alone, or everything.

Publishers cannot write then, and cannot say so in Redis; without a refusal to readers nothing tells them.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import redis

from tests.faults.rig import DEFAULT_LEASE, Outcome, rig
from tests.servers.redis_server import Binary, RedisServer, wait_for
from warmpath.indexer.trust import PROMISED_SECONDS

BEHIND = PROMISED_SECONDS + 2.0
"""Seconds for which publishers stay behind: longer than an exact answer may be old."""

Refusal = Callable[[RedisServer], AbstractContextManager[None]]
"""Refuses commands while it is entered; it blocks."""


async def refused(
    prefix: str, hold: float, *, refusal: Refusal, binary: Binary = "redis"
) -> Outcome:
    """Refuse commands for longer than an exact answer may be old, though not for a whole lease."""
    with RedisServer(binary) as server, contextlib.ExitStack() as stack:
        async with rig(server.url, prefix, lease=DEFAULT_LEASE) as made:
            await made.begin()
            await made.work(lambda: stack.enter_context(refusal(server)))
            await made.lasts(BEHIND + hold)
            await made.work(stack.close)
            return await made.healed()


@contextmanager
def misconf(server: RedisServer) -> Iterator[None]:
    """Let a snapshot fail, as on a full disk; Redis then refuses writes by default."""
    (server.folder / "dump.rdb" / "in the way").mkdir(parents=True)
    server.ask("BGSAVE")
    wait_for(lambda: server.facts("INFO", "persistence")["rdb_last_bgsave_status"] == "err")
    server.ask("CONFIG", "SET", "save", "3600 1")
    yield
    server.ask("CONFIG", "SET", "save", "")


@contextmanager
def no_replicas(server: RedisServer) -> Iterator[None]:
    """Ask for a replica that is not there."""
    server.ask("CONFIG", "SET", "min-replicas-to-write", "1")
    yield
    server.ask("CONFIG", "SET", "min-replicas-to-write", "0")


@contextmanager
def read_only(server: RedisServer) -> Iterator[None]:
    """Make the server a replica of nobody."""
    server.ask("REPLICAOF", "127.0.0.1", "1")
    yield
    server.ask("REPLICAOF", "NO", "ONE")


@contextmanager
def paused(server: RedisServer) -> Iterator[None]:
    """Hold all writes back; they are done at the end."""
    server.ask("CLIENT", "PAUSE", 3_600_000, "WRITE")
    yield
    server.ask("CLIENT", "UNPAUSE")


@contextmanager
def forbidden(server: RedisServer, *, what: str) -> Iterator[None]:
    """Take a right from the user that all parts are."""
    server.ask("ACL", "SETUSER", "admin", "on", "nopass", "+@all")
    with server.client(username="admin", password="any") as admin:
        admin.acl_setuser("default", enabled=True, categories=[], commands=[what])
        yield
        admin.acl_setuser("default", enabled=True, categories=["+@all"])


@contextmanager
def busy(server: RedisServer) -> Iterator[None]:
    """Run a script without end; after 0.1 s all other commands are refused."""
    server.ask("CONFIG", "SET", "lua-time-limit", "100")

    def run() -> None:
        with contextlib.suppress(redis.ResponseError):
            server.ask("EVAL", "while true do end", 0)

    running = threading.Thread(target=run)
    running.start()
    wait_for(partial(_is_busy, server))
    yield
    server.ask("SCRIPT", "KILL")
    running.join()


def _is_busy(server: RedisServer) -> bool:
    try:
        server.ask("PING")
    except redis.RedisError as error:
        return "BUSY" in str(error)
    return False


WRITES_REFUSED: dict[str, Refusal] = {
    "MISCONF": misconf,
    "NOREPLICAS": no_replicas,
    "READONLY": read_only,
    "CLIENT PAUSE WRITE": paused,
    "ACL -@write": partial(forbidden, what="-@write"),
    "ACL -hdel": partial(forbidden, what="-hdel"),
}
ALL_REFUSED: dict[str, Refusal] = {
    "BUSY": busy,
    "ACL -@all": partial(forbidden, what="-@all"),
}
