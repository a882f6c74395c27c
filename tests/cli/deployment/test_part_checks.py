"""Redis and certificates, as `warmpath doctor --config` sees them."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.indexer.shared.asked_server import Edge
from tests.servers.certificates import Authority
from tests.servers.redis_cluster import RedisCluster
from tests.servers.redis_server import RedisServer
from warmpath.cli.deployment.check import Check
from warmpath.cli.deployment.inspect import CHANGES, NO_INFO, certificates, shared_index
from warmpath.indexer.shared.layout.names import KeyNames, checkpoint
from warmpath.indexer.shared.redis.command import Call, script
from warmpath.indexer.shared.redis.fault import Fault
from warmpath.indexer.shared.sweep.sweeper import Sweeper
from warmpath.router.config.read import load

JOE = {"user": "joe", "password-file": "password"}


def of_redis(folder: Path, url: str, prefix: str, **more: str) -> dict[str, Check]:
    file = folder / "router.toml"
    keys = {"url": url, "prefix": prefix} | more
    table = "[shared-index]\n" + "".join(f'{key} = "{value}"\n' for key, value in keys.items())
    file.write_text(f'{table}[[models]]\nname = "m"\n', encoding="utf-8")
    return {one.check: one for one in asyncio.run(shared_index(file, url, 2.0))}


def test_a_redis_that_may_delete_the_index_is_named(
    tmp_path: Path, redis_server: RedisServer, prefix: str, held_port: int
) -> None:
    found = of_redis(tmp_path, redis_server.url, prefix)
    assert found["answer"].change == "shared-index.prefix, or start publishers with --redis"
    assert found["maxmemory-policy"].verdict == "ok", "also of an index that is empty yet"
    with Edge(redis_server.url) as edge:
        edge.ensure(KeyNames(prefix))
    checks = of_redis(tmp_path, redis_server.url, prefix)
    assert {one.verdict for one in checks.values()} == {"ok"}
    redis_server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        checks = of_redis(tmp_path, redis_server.url, prefix)
    finally:
        redis_server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
    assert checks["answer"].verdict == "ok"
    assert checks["maxmemory-policy"].change == "maxmemory-policy noeviction in Redis"
    away = of_redis(tmp_path, f"redis://127.0.0.1:{held_port}", prefix)
    assert "no Redis answers" in away["answer"].text
    assert away["answer"].text.count(f"127.0.0.1:{held_port}") == 1
    assert away["answer"].change == CHANGES[Fault.SILENCE]


def test_a_key_that_warmpath_cannot_have_written_is_named_until_a_sweep_removes_it(
    tmp_path: Path, redis_server: RedisServer, prefix: str
) -> None:
    names = KeyNames(prefix)
    ask = redis_server.ask
    with Edge(redis_server.url) as edge:
        edge.ensure(names)
        edge.do(Call(script("enlist"), (names.pods,), ("a",)))
        for words, key in (
            (("RPUSH", names.record("a"), "x"), names.record("a")),
            (("HSET", names.record("a"), "token", 2**53), names.record("a")),
            (("HSET", names.record("a"), "token", 1), names.record("a")),
            (("SET", names.log("a"), "x"), names.log("a")),
            (("SET", names.fence("a"), 10**12), names.fence("a")),
            (("HSET", names.bucket(7), checkpoint("a"), f"{10**12}:0"), names.bucket(7)),
            (("SET", names.bucket(7), "x"), names.bucket(7)),
            (("SET", names.routers, "x"), names.routers),
            (("SET", names.sweeper, "x"), names.sweeper),
            (("HSET", names.schema, "schema", "x"), names.schema),
        ):
            if key != names.schema:
                ask("DEL", key)
            ask(*words)
            found = of_redis(tmp_path, redis_server.url, prefix)["keys"]
            assert (found.verdict, key in found.text) == ("WRONG", True), found
            sweeper = Sweeper(edge.redis, names, owner="a", clock=time.monotonic)
            assert edge.run(sweeper.sweep(insist=True)) == ""
            found = of_redis(tmp_path, redis_server.url, prefix)["keys"]
            assert found.verdict == "ok", found


@pytest.mark.parametrize("kind", ["redis", "valkey"])
def test_a_full_redis_is_named_with_its_figures(
    tmp_path: Path, request: pytest.FixtureRequest, prefix: str, kind: str
) -> None:
    server: RedisServer = request.getfixturevalue(f"{kind}_server")
    assert of_redis(tmp_path, server.url, prefix)["maxmemory"].verdict == "ok", "there is no limit"
    server.ask("CONFIG", "SET", "maxmemory", 1000)
    try:
        memory = of_redis(tmp_path, server.url, prefix)["maxmemory"]
    finally:
        server.ask("CONFIG", "SET", "maxmemory", 0)
    assert memory.verdict == "WRONG"
    assert memory.text.startswith(
        f"Redis is full and refuses writes: 127.0.0.1:{server.port} uses "
    )
    assert memory.text.endswith(" of 1,000 bytes")
    assert memory.change.startswith("raise maxmemory in Redis")


def test_a_full_redis_is_named_also_to_a_user_who_may_not_see_its_figures(
    tmp_path: Path, prefix: str
) -> None:
    names = KeyNames(prefix)
    (tmp_path / "password").write_text("p")
    rule = f"user joe on >p ~{prefix}:* +@all -info"
    with RedisServer(users=("user default on nopass ~* &* +@all", rule)) as server:
        with Edge(server.url) as edge:
            edge.ensure(names)
        server.ask("HSET", names.pods, "w", "1")
        server.ask("HSET", names.record("w"), "token", "1")
        memory = of_redis(tmp_path, server.url, prefix, **JOE)["maxmemory"]
        assert (memory.verdict, memory.text) == ("not known", NO_INFO)
        reason = "OOM command not allowed when used memory > 'maxmemory'."
        server.ask("HSET", names.record("w"), "reason", reason)
        memory = of_redis(tmp_path, server.url, prefix, **JOE)["maxmemory"]
    assert memory.verdict == "WRONG"
    assert memory.text == "Redis is full and refuses the writes of w"


def test_each_fault_of_redis_has_advice_of_its_own_which_is_said_once(
    tmp_path: Path, redis_server: RedisServer, redis_cluster: RedisCluster, prefix: str
) -> None:
    (tmp_path / "password").write_text("p")
    joe = f"user joe on >p ~{prefix}:* +hgetall"
    with RedisServer(users=("user default on >other ~* +@all", joe)) as guarded:
        wrong = {"password-file": "password"}
        cases = [
            (guarded.url, {}, "this Redis wants a password: give it in shared-index.password-file"),
            (guarded.url, wrong, "look at shared-index.user and shared-index.password-file"),
            (guarded.url, JOE, CHANGES[Fault.RIGHT]),
            (
                redis_server.url,
                wrong,
                "this Redis has no password: leave shared-index.password-file out",
            ),
            (
                redis_server.url.replace("redis:", "redis-cluster:"),
                {},
                "this Redis belongs to no cluster: its URL begins with redis:// or redis-sentinel://",
            ),
            (
                f"{redis_server.url.replace('redis:', 'redis-sentinel:')}/m",
                {},
                "this Redis is no sentinel: its URL begins with redis:// or redis-cluster://",
            ),
            (redis_cluster.nodes[0].url, {}, CHANGES[Fault.KIND]),
        ]
        for url, more, advice in cases:
            answer = of_redis(tmp_path, url, prefix, **more)["answer"]
            assert (answer.verdict, answer.change) == ("WRONG", advice), answer.text
            assert answer.line.count(advice) == 1
            assert "shared-index.password-file" not in answer.text, "only the advice names keys"
            assert "--" not in answer.text, "the user has a file, and no option"


def test_a_certificate_that_ends_soon_is_named(tmp_path: Path) -> None:
    shown = Authority(tmp_path).certificate("router")
    file = tmp_path / "router.toml"
    tls = f'[server.tls]\ncert = "{shown.cert}"\nkey = "{shown.key}"\n'
    file.write_text(f'{tls}[[models]]\nname = "m"\n', encoding="utf-8")
    config, now = load(file), datetime.now(UTC)
    [first] = certificates(config, tmp_path, now)
    ends = datetime.fromisoformat(first.text.rpartition(" ")[2]).replace(tzinfo=UTC)
    for moment, verdict in ((now, first.verdict), (ends + timedelta(days=1), "WRONG")):
        [one] = certificates(config, tmp_path, moment)
        assert (one.subject, one.check, one.verdict) == ("certificate", "server.tls.cert", verdict)
    assert f"put a new one into {shown.cert}" in one.change
