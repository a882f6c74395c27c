"""What docs/guides/shared-index.md says of Redis: its rule for an ACL, and its memory limit."""

import asyncio
import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.lab.simworker.local_worker import LocalWorker
from tests.router.shared_stand import IDS, OTHER, generate, publisher, router, seen
from tests.servers.redis_cluster import RedisCluster, RedisSentinel
from tests.servers.redis_server import RedisServer
from tests.waiting import until
from warmpath.cli.index.command import main
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.redis.command import Call, Command, CommandRefusedError, Script
from warmpath.indexer.shared.redis.connect import RedisSettings, connect
from warmpath.lab.verify.check_index import main as check_index
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.publisher.assemble import publishing

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "guides" / "shared-index.md").read_text(encoding="utf-8")
SECRET = "opensesame"
ROUTERS = 'mode = "{mode}"\nuser = "warmpath"\npassword-file = "password"\nshare-bookings = true'
OPTIONAL = {"INFO", "MEMORY"}
"""Asked for, and done without."""
ELSEWHERE = {"SENTINEL", "READONLY", "COMMAND"}
"""Asked of sentinels; an error; no command of Redis."""


def rule() -> str:
    """Return the page's rule, as a line of an ACL file."""
    [line] = re.findall(r"^user warmpath .*$", PAGE, re.MULTILINE)
    return str(line).replace("PASSWORD", SECRET)


def given() -> set[str]:
    """Return the commands that the rule gives, in capitals."""
    return {word[1:].upper() for word in rule().split() if word.startswith("+")}


@pytest.fixture
def password(tmp_path: Path) -> str:
    file = tmp_path / "password"
    file.write_text(SECRET)
    return str(file)


@pytest.fixture(params=["redis", "valkey"])
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    users = ("user default on nopass ~* &* +@all", rule())
    with RedisServer(request.param, users=users) as server:
        yield server


def denials(server: RedisServer) -> set[str]:
    """Return what the user was refused so far."""
    entries = [
        dict(zip(entry[::2], entry[1::2], strict=True)) for entry in server.raw("ACL", "LOG")
    ]
    return {entry[b"object"].decode().upper() for entry in entries}


def test_the_rule_names_just_the_commands_that_the_code_does(redis_server: RedisServer) -> None:
    files = [
        *(ROOT / "indexer" / "shared").rglob("*.py"),
        *(ROOT / "indexer" / "shared").rglob("*.lua"),
        *(ROOT / "router" / "commands" / "index").glob("*.py"),
        *(ROOT / "router" / "peers").glob("*.py"),
    ]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    known = {entry[0].decode().upper() for entry in redis_server.raw("COMMAND")}
    words = set(re.findall(r"""["']([A-Z]{2,})["']""", text))
    used = (words & known) - OPTIONAL - ELSEWHERE
    assert used == {word.partition("|")[0] for word in given()}


@pytest.mark.deep
@pytest.mark.parametrize("mode", ["replica", "shared"])
async def test_everything_works_under_the_rule(
    tmp_path: Path, worker: LocalWorker, server: RedisServer, password: str, mode: str
) -> None:
    url, prefix = server.url, "warmpath"
    by = {"redis_user": "warmpath", "redis_password_file": password}
    more = ROUTERS.format(mode=mode)
    options = ["--url", url, "--user", "warmpath", "--password-file", password]
    async with (
        publishing(publisher(worker, url, prefix, **by)),
        router(tmp_path, url, prefix, seen(worker), more) as one,
        router(tmp_path, url, prefix, seen(worker), more) as _,
    ):
        await generate(worker, IDS)
        await until(one.is_believed)
        await one.holds(144)
        # Lost under their hands, claimed and written anew, swept.
        for number in range(KeyNames(prefix).buckets):
            server.ask("DEL", KeyNames(prefix).bucket(number))
        await generate(worker, OTHER)
        await one.holds(96, OTHER)
        await until(one.is_believed)
        for command in (["stats"], ["sweep", "--wait"], ["dump"]):
            assert await asyncio.to_thread(main, [*command, *options]) == 0
        assert await asyncio.to_thread(check_index, options) == 0
    assert denials(server) <= OPTIONAL | {"MEMORY|USAGE"}


async def test_other_keys_and_other_commands_are_refused(
    server: RedisServer, password: str
) -> None:
    redis = await connect(RedisSettings(server.url, user="warmpath", password_file=password))
    reach = Script("reach", "return redis.call('GET', ARGV[1])")
    refused = await redis.run(
        [
            Command(("GET", "other:key")),
            Command(("SET", "warmpat", 1)),
            Command(("HGETALL", "warmpath-2:{warmpath-2:b1}")),
            Call(reach, ("other:key",), ("other:key",)),
            Call(reach, ("warmpath:key",), ("other:key",)),
            Command(("KEYS", "*")),
            Command(("SCAN", 0)),
            Command(("FLUSHALL",)),
            Command(("CONFIG", "GET", "*")),
            Command(("CLUSTER", "RESET")),
            Command(("SCRIPT", "FLUSH")),
            Command(("ACL", "LIST")),
            Command(("PUBLISH", "x", "y")),
        ],
        timeout=20,
    )
    allowed = await redis.run([Call(reach, ("warmpath:key",), ("warmpath:key",))], timeout=20)
    await redis.close()
    assert [reply for reply in refused if not isinstance(reply, CommandRefusedError)] == []
    assert all(re.search(r"NOPERM|ermission|can't access", str(reply)) for reply in refused), (
        refused
    )
    assert "the ACL user may not use keys under 'other:'; docs/guides/shared-index.md" in str(
        refused[0]
    )
    assert "may not use keys under 'warmpath-2:'" in str(refused[2])
    assert "docs/guides/shared-index.md has the ACL rule" in str(refused[7])
    assert allowed == [None]


@pytest.mark.deep
async def test_the_rule_suffices_for_a_cluster_whose_slots_move(
    redis_cluster: RedisCluster, password: str
) -> None:
    words = rule().split()[2:]
    for node in redis_cluster.nodes:
        node.ask("ACL", "SETUSER", "warmpath", *words)
        node.ask("ACL", "LOG", "RESET")
    names = KeyNames("warmpath")
    redis = await connect(RedisSettings(redis_cluster.url, user="warmpath", password_file=password))
    add = Script("add", "return redis.call('HSET', KEYS[1], 'a', ARGV[1])")
    keys = [names.bucket(number) for number in range(names.buckets)]
    try:
        assert await redis.run([Call(add, (key,), (1,)) for key in keys], timeout=20) == [1] * 64
        slot = int(redis_cluster.nodes[0].ask("CLUSTER", "KEYSLOT", keys[0]))
        source = redis_cluster.master_of_slot(slot)
        target = next(
            n for n in redis_cluster.nodes if redis_cluster.is_master(n) and n is not source
        )
        redis_cluster.open_migration(slot, target)
        redis_cluster.move_keys(slot, source, target)
        assert await redis.run([Command(("HGET", keys[0], "a"))], timeout=20) == [b"1"]
        redis_cluster.end_migration(slot, target)
        assert await redis.run([Call(add, (key,), (2,)) for key in keys], timeout=20) == [0] * 64
    finally:
        await redis.close()
    assert [denials(node) for node in redis_cluster.nodes] == [set()] * 6


@pytest.mark.deep
async def test_the_rule_suffices_behind_sentinels(password: str) -> None:
    with RedisSentinel("valkey") as sentinel:
        for server in sentinel.servers:
            server.ask("ACL", "SETUSER", "warmpath", *rule().split()[2:])
        redis = await connect(RedisSettings(sentinel.url, user="warmpath", password_file=password))
        assert await redis.run([Command(("SET", "warmpath:a", 1))], timeout=20) == [b"OK"]
        await redis.close()
        assert [denials(server) for server in sentinel.servers] == [set()] * 2


@pytest.mark.deep
async def test_writes_refused_for_want_of_memory_are_said_and_made_up_for(
    tmp_path: Path, worker: LocalWorker, server: RedisServer, prefix: str
) -> None:
    await generate(worker, IDS)
    async with (
        publishing(publisher(worker, server.url, prefix)),
        router(tmp_path, server.url, prefix, seen(worker)) as one,
    ):
        await until(one.is_believed)
        server.ask("CONFIG", "SET", "maxmemory", 1)
        await generate(worker, OTHER)
        while "OOM" not in (await one.trust()).reason:
            # What was there before is known on.
            assert await one.score() == {"w": 144}
            await asyncio.sleep(0.02)
        assert (await one.trust()).level == pb.Trust.DEGRADED
        server.ask("CONFIG", "SET", "maxmemory", 0)
        await until(one.is_believed)
        assert await one.score(OTHER) == {"w": 96}
        assert await one.score() == {"w": 144}


@pytest.mark.deep
async def test_buckets_that_are_evicted_are_noticed_and_written_again(
    tmp_path: Path, worker: LocalWorker, server: RedisServer, prefix: str
) -> None:
    await generate(worker, IDS)
    names = KeyNames(prefix)
    async with (
        publishing(publisher(worker, server.url, prefix)),
        router(tmp_path, server.url, prefix, seen(worker)) as one,
    ):
        await until(one.is_believed)
        buckets = [names.bucket(number) for number in range(names.buckets)]
        assert server.ask("EXISTS", *buckets) == 64
        used = int(server.facts("INFO", "memory")["used_memory"])
        server.ask("CONFIG", "SET", "maxmemory-policy", "volatile-random")
        server.ask("CONFIG", "SET", "maxmemory", used + (1 << 20))
        number = 0
        async with asyncio.timeout(60):
            while (await one.trust()).level == pb.Trust.EXACT:
                # Others' keys have no time to live: room is made of what is the index's.
                if server.ask("EXISTS", *buckets) == 64:
                    number += 1
                    # Refused where there is nothing left that may go.
                    with contextlib.suppress(redis.ResponseError):
                        await asyncio.to_thread(server.ask, "SET", f"other{number}", b"x" * 50_000)
                assert set(await one.score()) == {"w"}
        server.ask("CONFIG", "SET", "maxmemory", 0)
        await until(one.is_believed)
        assert await one.score() == {"w": 144}
        assert server.ask("EXISTS", *buckets) == 64
