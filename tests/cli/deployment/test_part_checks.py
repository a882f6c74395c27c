"""The parts that `warmpath doctor --config` checks: Redis, certificates, engines, publishers; and whom it asks."""

import asyncio
import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import zmq.asyncio

from tests.indexer.shared.asked_server import Edge
from tests.servers.certificates import Authority
from tests.servers.redis_cluster import RedisCluster
from tests.servers.redis_server import RedisServer
from warmpath.cli.deployment import engine
from warmpath.cli.deployment.check import Answer, Check, Placed, _ahead
from warmpath.cli.deployment.inspect import (
    CHANGES,
    NO_INFO,
    _find,
    _key,
    certificates,
    check_events,
    shared_index,
)
from warmpath.cli.doctor import _near
from warmpath.indexer.shared.layout.names import KeyNames, checkpoint
from warmpath.indexer.shared.redis.command import Call, Fault, script
from warmpath.indexer.shared.sweep.sweeper import Sweeper
from warmpath.router.config.read import load
from warmpath.router.config.schema import Config, ModelSpec, PodSpec

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


def placed(table: str = "pods[0]", **fields: object) -> Placed:
    spec = PodSpec(id="p", model="demo", address="h:1", events="tcp://h:2", **fields)  # type: ignore[arg-type]
    return Placed(spec, table)


def of_vllm(pod: Placed, *lines: str, seen: Mapping[int, int] | None = None) -> dict[str, Check]:
    page = "".join(f"vllm:cache_config_info{{{line}}} 1.0\n" for line in lines).encode()
    checks = engine.cache(pod, Answer(200, page), Answer(404), seen or {})
    return {one.check: one for one in checks}


def of_sglang(pod: Placed, **said: object) -> dict[str, Check]:
    info = Answer(200, json.dumps(said).encode())
    return {one.check: one for one in engine.cache(pod, Answer(404), info, {0: 16})}


def test_vllms_metrics_show_what_is_off_and_which_ranks_there_are() -> None:
    line = 'block_size="16",enable_prefix_caching="False",engine="{}",num_gpu_blocks="100"'
    pod = placed("pod-sets[1]", ranks=1, first_rank=0)
    checks = of_vllm(pod, *map(line.format, (4, 5)), seen={0: 24})
    assert checks["prefix cache"].change == "give it --enable-prefix-caching"
    assert checks["block size"].text == "the engine says 16 tokens, its events say 24"
    assert checks["block size"].change == (
        "pod-sets[1].port and pod-sets[1].events-port are of two engines"
    )
    assert checks["ranks"].change == "pod-sets[1].ranks = 2, pod-sets[1].first-rank = 4"
    assert of_vllm(pod, line.format(0), seen={0: 32})["block size"].verdict == "ok"
    assert [one.verdict for one in of_vllm(pod).values()] == ["not known"]


def test_sglangs_server_info_shows_whether_events_are_on() -> None:
    well = {
        "page_size": 16,
        "disable_radix_cache": False,
        "kv_events_config": '{"publisher": "zmq"}',
        "dp_size": 1,
    }
    pod = placed(engine="sglang")
    checks = of_sglang(pod, **well)
    assert {one.verdict for one in checks.values()} == {"ok"}
    assert set(checks) == {"prefix cache", "block size", "events on", "ranks"}
    off = of_sglang(pod, **well | {"kv_events_config": None, "disable_radix_cache": True})
    assert off["prefix cache"].verdict == off["events on"].verdict == "WRONG"
    assert "--kv-events-config" in off["events on"].change


@pytest.mark.parametrize("status", [401, 403])
def test_an_engine_that_wants_a_key_is_named_with_the_setting(status: int) -> None:
    found = engine.served(placed("pod-sets[1]"), Answer(status), ModelSpec("demo"))
    assert found.verdict == "WRONG"
    assert found.change.startswith("pod-sets[1].key-file: ")


def test_tensorrt_says_little() -> None:
    [only] = engine.cache(placed(engine="trtllm"), Answer(200), Answer(200), {})
    assert (only.verdict, only.check) == ("not known", "block size")
    assert "pods[0].block-size (32)" in only.text


@pytest.mark.parametrize(
    ("now", "verdict"), [(0.0, "ok"), (2.5, "ok"), (-1.9, "ok"), (4.0, "WRONG"), (-4.0, "WRONG")]
)
def test_clocks_that_are_apart_are_named(now: float, verdict: str) -> None:
    ahead = _ahead("Thu, 01 Jan 1970 00:16:40 GMT", 1000.0 + now, 1000.1 + now)
    check = engine.clock(placed(), Answer(200, ahead=ahead))
    assert check.verdict == verdict
    if verdict == "WRONG":
        assert ("behind" if now > 0 else "ahead of") in check.text


def test_an_engine_that_refuses_requests_is_not_well() -> None:
    assert engine.reachable(placed(), Answer(503)).verdict == "WRONG"
    assert "another server's" in engine.reachable(placed(), Answer(404)).change
    assert engine.clock(placed(), Answer(503)).verdict == "not known"
    assert engine.kind(placed(), Answer(404)).verdict == "not known"


@pytest.mark.parametrize(
    ("address", "https", "key"),
    [("h:1", False, "secret"), ("h:1", True, ""), ("h:2", False, ""), ("other:1", False, "")],
)
def test_the_key_is_sent_only_to_tokenizer_urls(
    tmp_path: Path, address: str, https: bool, key: str
) -> None:
    (tmp_path / "key").write_text("secret\n")
    model = ModelSpec("demo", tokenizer_urls=["http://h:1/"], tokenizer_key_file="key")
    pod = Placed(PodSpec(id="p", model="demo", address=address, https=https), "pods[0]")
    assert _key(pod, model, tmp_path) == key
    assert _key(pod, ModelSpec("demo"), tmp_path) == ""


def test_a_pods_own_key_is_sent_to_it(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret\n")
    pod = Placed(PodSpec(id="p", model="demo", address="h:1", key_file="key"), "pods[0]")
    assert _key(pod, ModelSpec("demo"), tmp_path) == "secret"


def test_pods_of_a_file_are_asked_and_a_source_without_an_answer_is_named(tmp_path: Path) -> None:
    here = PodSpec(id="a", model="demo", address="h:1")
    config = Config(models=[ModelSpec("demo")], pods=[here], pods_file="pods.toml")
    placed, problems = _find(config, tmp_path, 5.0)
    assert placed == [Placed(here, "pods[0]")]
    assert [(one.subject, one.verdict) for one in problems] == [("pods-file", "WRONG")]
    (tmp_path / "pods.toml").write_text(
        "".join(f'[[pods]]\nid = "{one}"\nmodel = "demo"\naddress = "h:2"\n' for one in "ab")
    )
    placed, problems = _find(config, tmp_path, 5.0)
    assert [(pod.spec.id, pod.spec.address, pod.table) for pod in placed] == [
        ("a", "h:1", "pods[0]"), ("b", "h:2", "pods-file")
    ]  # fmt: skip
    assert not problems


@pytest.mark.parametrize(
    ("table", "key"), [("pods[0]", "pods[0].watch"), ("pod-sets[1]", "pod-sets[1].watch-port")]
)
async def test_a_publisher_that_is_away_is_named_with_the_key_that_there_is(
    table: str, key: str, held_port: int
) -> None:
    spec = PodSpec(id="p", model="demo", address="h:1", watch=f"127.0.0.1:{held_port}")
    context = zmq.asyncio.Context()
    try:
        [found] = [one async for one in check_events(Placed(spec, table), context, 5.0)]
    finally:
        context.destroy(linger=0)
    assert found.verdict == "WRONG"
    assert found.change == f"start 'warmpath publish', or {key}"


@pytest.mark.parametrize("listen", ["0.0.0.0:7400", "[::]:7400", ":7400", "127.0.0.1:7400"])
def test_a_router_that_listens_everywhere_is_asked_on_loopback(listen: str) -> None:
    assert _near(listen) == "127.0.0.1:7400"
    assert _near("unix:/run/router") == "unix:/run/router"
