"""What is asked of one real server, Redis and Valkey, over whole and broken connections.

One file, since each test asks one server.
"""

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py

from tests.indexer.shared.asked_server import answers, ask, connected
from tests.servers.redis_server import RedisServer
from tests.servers.relay import Relay
from tests.waiting import until
from warmpath.indexer.shared.redis import node
from warmpath.indexer.shared.redis.command import (
    Call,
    Command,
    CommandRefusedError,
    Fault,
    Script,
    UnreachableError,
    fault_of,
)
from warmpath.indexer.shared.redis.connect import RedisSettings, SettingsError, connect

ECHO = Script("echo", "return {KEYS[1], ARGV[1]}")
SLOW = Script("slow", "for i = 1, 20000000 do end return 1")


async def test_each_has_its_reply_in_its_place_and_its_error_too(server: RedisServer) -> None:
    async with connected(server.url) as redis:
        replies = await redis.run(
            [
                Command(("SET", "a", 1)),
                Command(("HGET", "a", "b")),
                Call(ECHO, ("k",), (b"\x00\xff",)),
                Command(("HSET", b"h", b"\x01", "é")),
                Command(("HGETALL", "h")),
                Command(("GET", "nothing")),
                Command(("PING",)),
            ],
            timeout=20,
        )
    refused = replies.pop(1)
    assert isinstance(refused, CommandRefusedError)
    assert str(refused).startswith("WRONGTYPE ")
    assert replies == [b"OK", [b"k", b"\x00\xff"], 1, [b"\x01", "é".encode()], None, b"PONG"]


async def test_nothing_asked_is_nothing_answered(server: RedisServer) -> None:
    async with connected(server.url) as redis:
        assert await redis.run([], timeout=20) == []


async def test_a_script_that_the_server_has_forgotten_is_sent_again(server: RedisServer) -> None:
    async with connected(server.url) as redis:
        for _ in range(2):
            calls = [Call(ECHO, (f"k{number}",), (number,)) for number in range(3)]
            expected = [[f"k{number}".encode(), str(number).encode()] for number in range(3)]
            assert await redis.run(calls, timeout=20) == expected
            server.ask("SCRIPT", "FLUSH")


async def test_a_script_that_does_not_compile_says_so(server: RedisServer) -> None:
    async with connected(server.url) as redis:
        [reply] = await redis.run([Call(Script("bad", "return ("), ("k",))], timeout=20)
    assert isinstance(reply, CommandRefusedError)
    assert "ompil" in str(reply)


async def test_a_refusal_inside_a_script_reads_as_outside(server: RedisServer) -> None:
    script = Script(
        "wrong", "redis.call('SET', KEYS[1], 1) return redis.call('HGET', KEYS[1], 'f')"
    )
    handed_on = Script("handed on", "return redis.pcall('SET', KEYS[1], 1)")
    async with connected(server.url) as redis:
        [reply] = await redis.run([Call(script, ("k",))], timeout=20)
        server.ask("CONFIG", "SET", "maxmemory", 1)
        try:
            full = await redis.run([Call(one, ("k",)) for one in (script, handed_on)], timeout=20)
        finally:
            server.ask("CONFIG", "SET", "maxmemory", 0)
    assert str(reply).startswith("WRONGTYPE ")
    assert [str(one)[:4] for one in full] == ["OOM ", "OOM "]


async def test_many_ask_at_once_over_one_connection(relay: Relay) -> None:
    async with connected(relay.url) as redis:
        asked = [
            [Command(("ECHO", f"{asker}/{number}")) for number in range(7)] for asker in range(50)
        ]
        answers = await asyncio.gather(*(redis.run(one, timeout=20) for one in asked))
        assert redis.disruptions == 1
    assert answers == [[str(one.words[1]).encode() for one in commands] for commands in asked]
    assert relay.connections == 1


async def test_large_values_pass(server: RedisServer) -> None:
    value = bytes(range(256)) * 8192
    async with connected(server.url) as redis:
        assert await ask(redis, "SET", "large", value) == b"OK"
        assert await redis.run([Command(("GET", "large"))] * 4, timeout=20) == [value] * 4


async def test_a_server_that_is_not_there_is_an_error_for_each_and_asked_again_later() -> None:
    server = RedisServer()
    server.start()
    server.kill()
    try:
        async with connected(server.url) as redis:
            replies = await redis.run([Command(("GET", "a")), Call(ECHO, ("k",), (1,))], timeout=20)
            assert [type(reply).__base__ for reply in replies] == [UnreachableError] * 2
            assert all(f":{server.port}" in str(reply) for reply in replies)
            assert redis.disruptions == 0
            server.restart()
            await answers(redis, "SET", "a", 1, reply=b"OK")
            assert redis.disruptions == 1
    finally:
        server.close()


async def test_a_restarted_server_is_asked_again_at_once_and_counts_as_lost_and_reached() -> None:
    with RedisServer(appendonly="yes", appendfsync="always") as server:
        async with connected(server.url) as redis:
            [loaded, _] = await redis.run(
                [Call(ECHO, ("k",), (1,)), Command(("SET", "a", 1))], timeout=20
            )
            before = redis.disruptions
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.restart)
            assert await redis.run(
                [Command(("GET", "a")), Call(ECHO, ("k",), (1,))], timeout=20
            ) == [b"1", loaded]
            assert redis.disruptions == before + 2


async def test_a_reply_that_comes_late_is_not_taken_for_another(server: RedisServer) -> None:
    async with connected(server.url) as redis:
        await redis.run([Command(("SET", f"k{number}", number)) for number in range(5)], timeout=20)
        for number in range(5):
            server.pause()
            try:
                late = await ask(redis, "GET", f"k{number}", timeout=0.05)
            finally:
                server.resume()
            assert isinstance(late, UnreachableError)
            assert await ask(redis, "GET", f"k{4 - number}") == str(4 - number).encode()


async def test_a_slow_server_is_not_a_lost_one(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Replies that are late because the machine is busy are slow too.
    monkeypatch.setattr(node, "PATIENCE", 60.0)
    async with connected(relay.url) as redis:
        assert await ask(redis, "SET", "a", 1) == b"OK"
        relay.latency = 0.1
        for _ in range(3):
            assert isinstance(await ask(redis, "GET", "a", timeout=0.05), UnreachableError)
        assert await ask(redis, "GET", "a") == b"1"
        assert (redis.disruptions, relay.connections) == (1, 1)


async def test_a_server_that_stands_still_is_given_up_and_reached_anew(relay: Relay) -> None:
    async with connected(relay.url) as redis:
        assert await ask(redis, "SET", "a", 1) == b"OK"
        relay.pause()

        async def is_given_up() -> bool:
            assert isinstance(await ask(redis, "GET", "a", timeout=0.05), UnreachableError)
            return redis.disruptions > 1

        await until(is_given_up)
        relay.resume()
        await answers(redis, "GET", "a", reply=b"1")
        assert relay.connections > 1


async def test_a_server_that_is_busy_counts_as_lost(server: RedisServer) -> None:
    server.ask("CONFIG", "SET", "lua-time-limit", 1)
    async with connected(server.url) as redis:
        assert await ask(redis, "GET", "a") is None
        before = redis.disruptions
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(asyncio.to_thread(endless, server))

            async def is_busy() -> bool:
                reply = await ask(redis, "GET", "a", timeout=1)
                return isinstance(reply, CommandRefusedError) and str(reply).startswith("BUSY")

            await until(is_busy)
            server.ask("SCRIPT", "KILL")
        assert redis.disruptions > before


def endless(server: RedisServer) -> None:
    with pytest.raises(redis_py.ResponseError, match="killed"):
        server.ask("EVAL", "while true do end", 0)


async def test_a_server_that_has_loaded_other_data_counts_as_lost_though_it_answers_again() -> None:
    # A server that loads looks at its connections every 2 MiB.
    with RedisServer(rdbcompression="no", key_load_delay=10_000) as server:
        server.ask("DEBUG", "POPULATE", 20, "key", 1 << 20)
        async with connected(server.url) as redis:
            await ask(redis, "GET", "a")
            before = redis.disruptions
            async with asyncio.TaskGroup() as tasks:
                loading = tasks.create_task(asyncio.to_thread(server.ask, "DEBUG", "RELOAD"))
                while not loading.done():
                    assert await ask(redis, "GET", "a") is None
            assert redis.disruptions > before


async def test_a_replica_without_its_master_counts_as_lost() -> None:
    with RedisServer(replica_serve_stale_data="no") as server:
        async with connected(server.url) as redis:
            await ask(redis, "GET", "a")
            server.ask("REPLICAOF", "127.0.0.1", 1)
            before = redis.disruptions
            reply = await ask(redis, "GET", "a", timeout=0.1)
            assert str(reply).startswith("MASTERDOWN")
            assert redis.disruptions > before


async def test_what_is_refused_for_the_commands_own_sake_says_nothing_of_the_server() -> None:
    with RedisServer(save="3600 1", stop_writes_on_bgsave_error="yes") as server:
        async with connected(server.url) as redis:
            await ask(redis, "SET", "a", 1)
            before = redis.disruptions
            # The server cannot save: a folder has its file's name.
            (server.folder / "dump.rdb" / "full").mkdir(parents=True)
            with contextlib.suppress(redis_py.RedisError):
                server.ask("SAVE")
            server.ask("BGSAVE")

            async def cannot_save() -> bool:
                return server.facts("INFO", "persistence")["rdb_last_bgsave_status"] == "err"

            await until(cannot_save)
            refused = [await ask(redis, "SET", "a", 1)]
            server.ask("CONFIG", "SET", "stop-writes-on-bgsave-error", "no")
            for name, bad, good in (("maxmemory", "1", "0"), ("min-replicas-to-write", "1", "0")):
                server.ask("CONFIG", "SET", name, bad)
                refused.append(await ask(redis, "SET", "a", 1))
                server.ask("CONFIG", "SET", name, good)
            server.ask("REPLICAOF", "127.0.0.1", 1)
            refused.append(await ask(redis, "SET", "a", 1))
            server.ask("REPLICAOF", "NO", "ONE")
            refused.append(await ask(redis, "HGET", "a", "f"))
            server.ask("SCRIPT", "FLUSH")
            assert await redis.run([Call(ECHO, ("k",), (1,))], timeout=20) == [[b"k", b"1"]]
            server.ask("ACL", "SETUSER", "default", "-xrange")
            refused.append(await ask(redis, "XRANGE", "s", "-", "+"))
            assert [str(one).split()[0] for one in refused] == [
                "MISCONF",
                "OOM",
                "NOREPLICAS",
                "READONLY",
                "WRONGTYPE",
                "NOPERM",
            ]
            assert redis.disruptions == before


async def test_who_is_cut_off_in_mid_batch_has_what_came_and_errors_for_the_rest(
    relay: Relay,
) -> None:
    value = b"v" * 100_000
    async with connected(relay.url) as redis:
        assert await ask(redis, "SET", "a", value) == b"OK"
        relay.bytes_per_second = 400_000
        asked = [Command(("GET", "a"))] * 40
        batch = asyncio.create_task(redis.run(asked, timeout=60))
        other = asyncio.create_task(redis.run([Command(("GET", "a"))], timeout=60))
        first = asyncio.create_task(redis.run([Command(("PING",))], timeout=0.5))
        assert isinstance((await first)[0], UnreachableError)
        relay.cut()
        replies = await batch
        missing = [reply for reply in replies if isinstance(reply, UnreachableError)]
        assert missing
        assert replies == [value] * (40 - len(missing)) + missing
        assert isinstance((await other)[0], UnreachableError)
        relay.bytes_per_second = 0
        assert await ask(redis, "GET", "a") == value
        assert redis.disruptions == 3


async def test_who_stops_waiting_in_mid_write_does_no_harm(relay: Relay) -> None:
    async with connected(relay.url) as redis:
        assert await ask(redis, "SET", "a", 1) == b"OK"
        relay.pause()
        write = redis.run([Command(("SET", "b", b"v" * (1 << 25)))], timeout=0.2)
        assert isinstance((await write)[0], UnreachableError)
        relay.resume()
        await answers(redis, "GET", "a", reply=b"1")


async def test_a_cancelled_caller_leaves_others_their_replies(relay: Relay) -> None:
    async with connected(relay.url) as redis:
        relay.latency = 0.05
        tasks = [asyncio.create_task(ask(redis, "ECHO", number)) for number in range(20)]
        await asyncio.sleep(0)
        for task in tasks[::3]:
            task.cancel()
        replies = await asyncio.gather(*tasks, return_exceptions=True)
    kept = [number for number in range(20) if number % 3]
    assert [replies[number] for number in kept] == [str(number).encode() for number in kept]


async def test_a_word_that_redis_has_no_type_for_is_the_callers_error_alone(
    server: RedisServer,
) -> None:
    async with connected(server.url) as redis:
        with pytest.raises(TypeError):
            await redis.run([Command(("GET", "a")), Command(("GET", None))], timeout=20)  # type: ignore[arg-type]
        assert await ask(redis, "ECHO", "b") == b"b"


async def test_a_cluster_s_node_says_how_its_url_begins(redis_cluster: Any) -> None:
    async with connected(redis_cluster.nodes[0].url) as redis:
        replies = await redis.run(
            [Command(("GET", f"k{number}")) for number in range(20)], timeout=20
        )
    refused = [reply for reply in replies if isinstance(reply, CommandRefusedError)]
    assert refused
    assert all("redis-cluster://" in str(reply) for reply in refused)


async def test_a_lone_server_is_no_cluster(redis_server: RedisServer) -> None:
    async with connected(redis_server.url.replace("redis:", "redis-cluster:")) as redis:
        # The second comes before any node is asked again.
        for reply in (await ask(redis, "GET", "a"), await ask(redis, "GET", "a")):
            assert isinstance(reply, CommandRefusedError)
            assert "cluster support disabled (this Redis belongs to no cluster" in str(reply)


async def test_a_server_that_stands_still_is_not_said_to_have_closed_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node, "PATIENCE", 0.0)
    with RedisServer() as server:
        server.pause()
        async with connected(server.url) as redis:
            impatient = asyncio.create_task(ask(redis, "GET", "a", timeout=0.2))
            replies = await asyncio.gather(impatient, ask(redis, "GET", "b"))
    assert [str(reply) for reply in replies] == ["no answer within 0.2 s", "no answer within 0 s"]


async def test_a_server_that_wants_a_password_says_so_of_scripts_too(server: RedisServer) -> None:
    with RedisServer(server.name, users=("user default on >right ~* +@all",)) as guarded:
        async with connected(guarded.url) as redis:
            [reply] = await redis.run([Call(SLOW, ("a",))], timeout=20)
            assert fault_of(reply) is Fault.NO_PASSWORD_GIVEN
            assert str(reply).endswith("(this Redis wants a password: give it in password-file)")


async def test_who_does_not_answer_is_named_once(held_port: int) -> None:
    async with connected(f"redis://127.0.0.1:{held_port}") as redis:
        reply = await ask(redis, "GET", "a")
    assert isinstance(reply, UnreachableError)
    assert str(reply) == f"127.0.0.1:{held_port}: nothing listens there"
    async with connected("redis://nowhere.invalid:1") as redis:
        assert str(await ask(redis, "GET", "a")).count("nowhere.invalid") == 1


async def test_a_password_is_read_anew_for_each_connection(tmp_path: Path) -> None:
    file = tmp_path / "password"
    users = ("user default on >old ~* +@all", "user joe on >joes ~* +@all")
    with RedisServer(users=users) as server:
        file.write_text("old\n")
        async with connected(server.url, password_file=str(file)) as redis:
            assert await ask(redis, "ACL", "WHOAMI") == b"default"
            server.password = "old"
            server.ask("ACL", "SETUSER", "default", ">new", "<old")
            server.password = "new"
            await asyncio.to_thread(server.ask, "CLIENT", "KILL", "TYPE", "normal")
            file.write_text("new")
            assert await ask(redis, "ACL", "WHOAMI") == b"default"
        file.write_text("joes")
        async with connected(server.url, user="joe", password_file=str(file)) as redis:
            assert await ask(redis, "ACL", "WHOAMI") == b"joe"


@pytest.mark.parametrize("binary", ["redis", "valkey"])
async def test_a_wrong_password_is_said_and_not_shown(tmp_path: Path, binary: Any) -> None:
    file = tmp_path / "password"
    file.write_text("hunter2")
    with RedisServer(binary, users=("user default on >right ~* +@all",)) as server:
        async with connected(server.url, password_file=str(file)) as redis:
            for reply in await redis.run(
                [Command(("GET", "a")), Command(("GET", "b"))], timeout=20
            ):
                assert isinstance(reply, CommandRefusedError)
                assert "WRONGPASS" in str(reply)
                assert f":{server.port}" in str(reply)
                assert "hunter2" not in repr(reply)
        async with connected(server.url) as redis:
            assert str(await ask(redis, "GET", "a")).startswith("NOAUTH")


async def test_a_password_file_that_is_empty_or_gone_later_is_named(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    file = tmp_path / "password"
    file.write_text("x")
    async with connected(redis_server.url, password_file=str(file)) as redis:
        file.write_text("\n")
        empty = await ask(redis, "GET", "a")
        file.unlink()

        async def is_missed() -> bool:
            return "No such file" in str(await ask(redis, "GET", "a"))

        await until(is_missed)
        missing = await ask(redis, "GET", "a")
    assert isinstance(empty, UnreachableError)
    assert f"password-file: {file} is empty" in str(empty)
    assert isinstance(missing, UnreachableError)
    assert str(file) in str(missing)


@pytest.mark.parametrize(
    ("url", "settings", "says"),
    [
        ("redis://a", {"ca": "ca.pem"}, "ca: is for TLS"),
        ("rediss://a", {"cert": "cert.pem"}, "cert and key"),
        ("redis://a", {"user": "joe"}, "user: needs a password-file"),
        ("redis://a", {"password_file": "/nowhere/x"}, "password-file: /nowhere/x cannot be read"),
        ("rediss://a", {"ca": "/nowhere/ca"}, "ca: /nowhere/ca cannot be read"),
        ("rediss://a", {"ca": "/dev/null"}, "ca: /dev/null cannot be read: is a device"),
    ],
)
async def test_settings_that_cannot_work_are_refused_at_once(
    url: str, settings: dict[str, str], says: str
) -> None:
    with pytest.raises(SettingsError, match=says):
        await connect(RedisSettings(url, **settings))


async def test_a_password_file_that_becomes_something_else_is_named_and_nothing_of_it_is_shown(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    file = tmp_path / "password"
    file.write_bytes(b"hunter2\xff")
    async with connected(redis_server.url, password_file=str(file)) as redis:
        binary = await ask(redis, "GET", "a")
        file.unlink()
        os.mkfifo(file)

        async def is_pipe() -> bool:
            return "is a pipe, not a file" in str(await ask(redis, "GET", "a"))

        await until(is_pipe)
    assert isinstance(binary, UnreachableError)
    assert str(binary).endswith(f"password-file: {file} is not UTF-8")
