"""`warmpath index` beside a real worker, publisher and Redis.

One file, since nearly all tests use one stand.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.conftest import Output
from tests.indexer.segment_values import encode, pack
from tests.indexer.shared.asked_server import AskedServer, Edge
from tests.indexer.shared.model_writer import ModelWriter, content
from tests.publisher.published_pod import IDS, Pod
from tests.servers.redis_cluster import RedisCluster
from tests.servers.redis_server import RedisServer
from warmpath.cli.asking import print_rich
from warmpath.cli.index.command import main
from warmpath.indexer.keys.key import Keyspace, chain, pack_tokens
from warmpath.indexer.keys.segment_value import decode
from warmpath.indexer.shared.layout.names import KeyNames, checkpoint
from warmpath.indexer.shared.layout.record import read_record
from warmpath.indexer.shared.sweep import sweeper
from warmpath.indexer.shared.sweep.sweeper import AT_REST
from warmpath.indexer.trust import Level
from warmpath.lab.local.cluster import MODEL
from warmpath.lab.verify.check_index import Checked, shown
from warmpath.lab.verify.check_index import main as check_main
from warmpath.lab.verify.difference import Compared, Difference
from warmpath.lab.verify.structure import Structure, holders
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2 as pb

KEYS = chain(Keyspace(model=MODEL, block_size=16).root(), pack_tokens(IDS), 16)


@pytest.fixture(autouse=True)
def sweeps_wait_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeper, "DEAD_SECONDS", 0.05)


def index(command: str, *options: str) -> int:
    """Run `warmpath check-index`, or one of the commands of `warmpath index`."""
    return check_main(options) if command == "check" else main([command, *options])


def told(output: Output, command: str, *options: str, status: int = 0) -> Any:
    """Return what a command says as JSON."""
    assert index(command, "--json", *options) == status
    return output.json()


class Stand:
    """A pod whose cache is in Redis."""

    def __init__(self, server: RedisServer, prefix: str, pod: Pod) -> None:
        self.server = server
        self.names = KeyNames(prefix)
        self.pod = pod

    async def index(self, *words: str) -> int:
        where = ["--url", self.server.url, "--prefix", self.names.prefix]
        return await asyncio.to_thread(index, *words, *where)

    async def told(self, output: Output, command: str, status: int = 0) -> Any:
        """Return what a command says as JSON."""
        assert await self.index(command, "--json") == status
        return output.json()

    def holds(self, key: int) -> bool:
        try:
            return bool(self.field(key))
        except AssertionError:
            return False

    def field(self, key: int) -> tuple[str, bytes, bytes]:
        """Return bucket, field and value of the segment that holds a key."""
        for number in range(self.names.buckets):
            bucket = self.names.bucket(number)
            for name, value in self.server.ask("HGETALL", bucket).items():
                if len(name) == 8 and key in decode(value).keys:
                    return bucket, name, value
        raise AssertionError(f"{key:016x} is nowhere")

    def plant(self, *, gone: int | None = None, extra: int | None = None) -> None:
        """Change what a segment says behind its writer's back."""
        bucket, name, value = self.field(KEYS[0])
        held = holders(decode(value))
        if gone is not None:
            del held[gone]
        if extra is not None:
            held[extra] = held[KEYS[0]]
        self.server.ask("HSET", bucket, name, encode(pack(held)))

    def has_all(self) -> bool:
        record = read_record(self.server.ask("HGETALL", self.names.record("p")))
        return record is not None and record.sound and bool(record.blocks.get(0))


@pytest.fixture
async def stand(redis_server: RedisServer, prefix: str, tmp_path: Path) -> AsyncIterator[Stand]:
    async with Pod(tmp_path) as pod:
        stand = Stand(redis_server, prefix, pod)
        # The publisher is not to sweep by itself what a test wants to see.
        redis_server.ask("SET", stand.names.sweeper, f"{AT_REST}the test", "PX", 600_000)
        await pod.publish(f"--redis={redis_server.url}", f"--redis-prefix={prefix}")
        await pod.generate(IDS)
        async with asyncio.timeout(60):
            while not stand.has_all():
                await asyncio.sleep(0.02)
        yield stand


@pytest.fixture
def cluster() -> Iterator[RedisCluster]:
    """Return a cluster that answers for the nodes that live."""
    with RedisCluster(replicas=0, cluster_require_full_coverage="no") as cluster:
        yield cluster


async def check_under_churn(stand: Stand, output: Output) -> None:
    ended = asyncio.Event()

    async def churn() -> None:
        number = 0
        while not ended.is_set():
            number += 1
            await stand.pod.generate([number % 400 * 64 + n for n in range(64)])

    task = asyncio.create_task(churn())
    try:
        for _ in range(5):
            assert await stand.index("check", "--json") == 0
            assert output.json()["pods"][0]["problem"] == ""
    finally:
        ended.set()
        await task


@pytest.mark.deep
async def test_check_is_right_while_the_publisher_writes_on_and_finds_what_was_planted(
    stand: Stand, output: Output
) -> None:
    await check_under_churn(stand, output)
    await stand.pod.generate(IDS)
    async with asyncio.timeout(60):
        while not stand.holds(KEYS[-2]):
            await asyncio.sleep(0.02)
    # On a busy machine each block may come or go meanwhile: then nothing was compared.
    async with asyncio.timeout(60):
        while (status := await stand.index("check", "--json")) == 3:
            output.json()
    assert status == 0
    found = output.json()
    assert found["well"]
    assert found["whole"]
    assert found["pods"][0]["keys"] >= len(KEYS) - 1
    stand.plant(gone=KEYS[1], extra=4711)
    (difference,) = (await stand.told(output, "check", status=1))["pods"][0]["differences"]
    assert difference == {
        "rank": 0, "tier": "gpu", "group": 0,
        "missing": [f"{KEYS[1]:016x}"], "extra": [f"{4711:016x}"], "twice": [],
    }  # fmt: skip
    assert await stand.index("check") == 1
    assert f"1 missing, 1 extra (such as {KEYS[1]:016x})" in output.out()


async def test_check_finds_values_that_cannot_be_read_and_a_checkpoint_that_is_lost(
    stand: Stand, output: Output
) -> None:
    names, ask = stand.names, stand.server.ask
    await stand.pod.publisher.stop()
    # Its record stays, as it would for a lease.
    ask("PEXPIRE", names.record("p"), 600_000)
    ask("HSET", names.record("p"), "sound", "1")
    bucket, name, _ = stand.field(KEYS[0])
    others = [names.bucket(n) for n in range(names.buckets) if names.bucket(n) != bucket]
    ask("HSET", bucket, name, b"\x01\x00\x01\x00short")
    ask("HDEL", others[0], checkpoint("p"))
    ask("HSET", others[1], b"\x07" * 8, encode(pack({1: [2]})))
    found = await stand.told(output, "check", status=1)
    assert len(found["structure"]) == 3
    text = " ".join(found["structure"])
    assert name.hex() in text
    assert "pod p is said to be sound, and its writer does not have the bucket" in text
    assert "0707070707070707 lies in another bucket" in text
    assert "its publisher at" in found["pods"][0]["problem"]
    assert not found["whole"]
    for number, fields in ((0, (checkpoint("p"),)), (1, (b"\x07" * 8,))):
        ask("HDEL", others[number], *fields)
    ask("DEL", bucket)
    ask("HDEL", names.record("p"), "sound")
    # Nothing is known to be wrong, and it could not be compared.
    assert await stand.index("check", "--json") == 3
    assert "not sound" in output.json()["pods"][0]["problem"]


async def test_stats_count_what_is_there_and_dump_writes_it(
    stand: Stand, tmp_path: Path, output: Output
) -> None:
    found = await stand.told(output, "stats")
    (pod,) = found["pods"]
    assert (pod["pod"], pod["sound"], pod["token"], pod["model"]) == ("p", True, 1, MODEL)
    (rank,) = pod["ranks"]
    assert rank["trust"] == "exact"
    assert rank["blocks"]["gpu"] == rank["entries"]["gpu"] == found["entries"] == found["blocks"]
    assert 0 < pod["lease_seconds"] <= 10
    (server,) = found["servers"]
    assert server["server"].startswith("Redis 6.2")
    assert server["address"] == f"127.0.0.1:{stand.server.port}"
    assert len(server["buckets"]) == 64
    assert found["memory_bytes"] == server["index_bytes"] > found["bytes"] > 0
    assert found["dead_entries"] == found["unreadable_fields"] == 0
    assert await stand.index("stats") == 0
    assert "exact" in output.out()
    file = tmp_path / "dump.jsonl"
    assert await stand.index("dump", "--out", str(file)) == 0
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert lines[0]["kind"] == "pod"
    assert lines[0]["places"] == [{"rank": 0, "tier": "gpu", "group": 0}]
    keys = {key for line in lines if line["kind"] == "segment" for key, _ in line["blocks"]}
    assert {f"{key:016x}" for key in KEYS[:-1]} <= keys
    holder = {"pod": "p", "rank": 0, "tier": "gpu", "group": 0}
    assert all(line["holders"] == [holder] for line in lines if line["kind"] == "segment")
    assert sum(line["kind"] == "checkpoint" for line in lines) == 64
    assert await stand.index("dump", "--out", str(file)) == 2
    assert "it is there already" in output.err()
    assert await stand.index("dump", "--out", str(tmp_path / "another"), "--pod", "another") == 2
    assert "is of a pod 'another' (--pod)" in output.err()
    assert not (tmp_path / "another").exists()
    assert await stand.index("dump", "--pod", "p") == 0
    assert output.out().startswith('{"kind":"pod","pod":"p"')


async def test_stats_say_once_how_far_each_rank_may_be_believed(
    stand: Stand, output: Output
) -> None:
    record, ask = stand.names.record("p"), stand.server.ask
    said = ""
    while "exact: " not in said:  # the record follows the blocks
        await stand.index("stats")
        said = output.words()
    await stand.pod.publisher.stop()
    ask("PERSIST", record)
    ask("HSET", record, "reason", "OOM: no room")
    await stand.index("stats")
    said = output.words()
    assert "degraded: OOM: no room" in said
    assert "exact" not in said
    assert "sound" not in said
    gap = pb.RankState(rank=0, trust=Level.DEGRADED, reason="a gap")
    ask("HSET", record, "state:0", gap.SerializeToString())
    await stand.index("stats")
    assert "degraded: a gap; OOM: no room" in output.words()
    ask("HSET", record, "token", "odd")
    await stand.index("stats")
    assert "not known: a pod's record cannot be read" in output.words()
    ask("DEL", record)
    await stand.index("stats")
    assert "cold: no record: its lease is over" in output.words()


def test_a_dump_ends_quietly_where_nobody_reads_on(redis_server: RedisServer, prefix: str) -> None:
    names = KeyNames(prefix)
    with Edge(redis_server.url) as edge:
        edge.ensure(names)
        writer = ModelWriter(edge, names, "p", 1)
        writer.begin()
        writer.tell()
    reading, writing = os.pipe()
    os.close(reading)
    try:
        words = ("index", "dump", "--url", redis_server.url, "--prefix", prefix)
        ended = subprocess.run(
            [sys.executable, "-m", "warmpath.cli", *words], stdout=writing, stderr=subprocess.PIPE,
            timeout=60, check=False,
        )  # fmt: skip
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stderr) == (0, b"")


async def test_sweep_takes_what_is_dead_and_says_who_else_sweeps(
    stand: Stand, output: Output
) -> None:
    dead = ModelWriter(AskedServer(stand.server), stand.names, "gone", 1)
    dead.begin()
    for segment in range(10):
        dead.write(0, segment, {segment + 100})
    dead.record_ends()
    before = await stand.told(output, "stats")
    assert before["dead_entries"] == 10
    stand.server.ask("SET", stand.names.sweeper, "router of mine", "PX", 300)
    assert await stand.index("sweep") == 1
    assert "router of mine is sweeping now" in output.err()
    assert await stand.index("sweep", "--wait") == 0
    assert "dead slots taken out of 10" in output.out()
    after = await stand.told(output, "stats")
    assert after["dead_entries"] == 0
    assert after["entries"] == before["entries"] - 10
    assert after["sweeper"]["last"].startswith("warmpath index on ")
    # The pod that is gone is not forgotten yet.
    assert await stand.index("check", "--json") == 3
    problems = {one["pod"]: one["problem"] for one in output.json()["pods"]}
    assert problems["p"] == ""
    assert "no publisher holds it" in problems["gone"]


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["valkey_server", "redis_cluster"])
def test_it_works_on_valkey_and_on_a_cluster(
    kind: str, prefix: str, request: pytest.FixtureRequest, output: Output
) -> None:
    server, names = request.getfixturevalue(kind), KeyNames(prefix)
    where = ("--url", server.url, "--prefix", prefix)
    with Edge(server.url) as edge:
        edge.ensure(names)
        writers = [ModelWriter(edge, names, pod, n) for n, pod in enumerate(("gone", "here"))]
        for writer in writers:
            writer.begin()
            for segment in range(0, 640, 7):
                writer.write(0, segment, {segment, segment + 1})
            writer.tell()
        writers[0].record_ends()
        before = told(output, "stats", *where)
        assert before["dead_entries"] * 2 == before["entries"]
        masters = 1 if kind == "valkey_server" else 3
        assert [one["server"][:6] for one in before["servers"]] == (
            ["Valkey"] if masters == 1 else ["Redis "] * 3
        )
        assert sum(len(one["buckets"]) for one in before["servers"]) == 64
        assert main(["sweep", *where]) == 0
        output.both()
        after = told(output, "stats", *where)
        assert (after["dead_entries"], after["entries"]) == (0, before["entries"] // 2)
        assert writers[1].missing(content(edge, names)) == []
        assert writers[1].audit()
    assert main(["dump", *where]) == 0
    assert output.out().count('"kind":"segment"') == len(range(0, 640, 7))


@pytest.mark.deep
def test_what_the_living_nodes_hold_is_shown_while_one_is_dead(
    cluster: RedisCluster, prefix: str, output: Output
) -> None:
    names = KeyNames(prefix)
    where = ("--url", cluster.url, "--prefix", prefix)
    with Edge(cluster.url) as edge:
        write_segments(edge, names, "p")
    dead = cluster.master_of(names.bucket(0))
    dead.close()
    found = told(output, "stats", *where, status=3)
    assert f"127.0.0.1:{dead.port}: " in found["not_reached"]
    assert sorted(one["address"] for one in found["servers"]) == sorted(
        f"127.0.0.1:{node.port}" for node in cluster.nodes_alive()
    )
    read = sum(len(one["buckets"]) for one in found["servers"])
    assert 0 < read < names.buckets
    assert found["blocks"] == read
    assert [one["pod"] for one in found["pods"]] == ["p"]
    found = told(output, "check", *where, status=3)
    assert (found["well"], found["whole"], found["empty"]) == (True, False, "")
    assert f"127.0.0.1:{dead.port}: " in found["not_reached"]
    assert [one["pod"] for one in found["pods"]] == ["p"]
    assert index("check", *where) == main(["stats", *where]) == 3
    assert f"of 64 buckets were not reached: 127.0.0.1:{dead.port}" in output.words()


def test_nothing_is_called_dead_while_the_node_of_its_record_is_dead(
    cluster: RedisCluster, prefix: str, output: Output
) -> None:
    names = KeyNames(prefix)
    with Edge(cluster.url) as edge:
        write_segments(edge, names, "p")
    cluster.master_of(names.record("p")).close()
    where = ("--url", cluster.url, "--prefix", prefix)
    found = told(output, "stats", *where, status=3)
    assert found["entries"] > 0
    assert [(one["pod"], one["entries"]) for one in found["pods"]] == [("p", None)]
    are_not_counted(where, "the record of pod p", output)
    assert main(["dump", *where]) == 3
    assert '"dead":true' not in output.out()


def test_an_incomplete_dump_without_a_line_leaves_no_file(
    cluster: RedisCluster, prefix: str, tmp_path: Path, output: Output
) -> None:
    names = KeyNames(prefix)
    with Edge(cluster.url) as edge:
        edge.ensure(names)
    at_schema = cluster.master_of(names.schema)
    next(one for one in cluster.nodes_alive() if one is not at_schema).close()
    file = tmp_path / "dump.jsonl"
    where = ("--url", cluster.url, "--prefix", prefix, "--out", str(file))
    assert main(["dump", *where]) == 3
    assert "buckets were not reached" in output.err()
    assert not file.exists()


@pytest.mark.deep
def test_nothing_is_called_dead_while_the_node_of_the_list_of_pods_is_dead(
    cluster: RedisCluster, prefix: str, output: Output
) -> None:
    names = KeyNames(prefix)
    dead = cluster.master_of(names.pods)
    here = next(
        pod
        for pod in (f"p{number}" for number in range(100))
        if cluster.master_of(names.record(pod)) is not dead
    )
    with Edge(cluster.url) as edge:
        write_segments(edge, names, here)
        write_segments(edge, names, "gone", 2).record_ends()
    dead.close()
    where = ("--url", cluster.url, "--prefix", prefix)
    found = told(output, "stats", *where, status=3)
    entries = {one["pod"]: one["entries"] for one in found["pods"]}
    assert entries[here] * 2 == found["entries"], "it is known by its checkpoints"
    are_not_counted(where, "the list of pods", output)


def test_a_living_pod_that_the_list_of_pods_lacks_is_known_by_its_checkpoints(
    redis_server: RedisServer, prefix: str, output: Output
) -> None:
    names, where = KeyNames(prefix), ("--url", redis_server.url, "--prefix", prefix)
    with Edge(redis_server.url) as edge:
        write_segments(edge, names, "p")
    redis_server.ask("DEL", names.pods)
    for command in ("stats", "check"):
        index(command, "--json", *where)
        found = output.json()
        assert (found["dead_entries"], found["not_read"]) == (0, "")
    redis_server.ask("HSET", names.record("p"), "token", "odd")
    are_not_counted(where, "the record of pod p", output)


def are_not_counted(where: Sequence[str], unread: str, output: Output) -> None:
    """Both commands say that dead entries are not counted, and what was not read."""
    for command in ("stats", "check"):
        index(command, "--json", *where)
        found = output.json()
        assert found["dead_entries"] is None
        assert unread in found["not_read"]
        index(command, *where)
        said = output.words()
        assert "ow many entries are dead is not known: " in said
        assert unread in said
        assert "dead entries wait" not in said


def write_segments(edge: Edge, names: KeyNames, pod: str, base: int = 1) -> ModelWriter:
    """Claim a pod, and write one block into each bucket."""
    edge.ensure(names)
    writer = ModelWriter(edge, names, pod, base, enlists=True)
    writer.begin()
    for segment in range(names.buckets):
        writer.write(0, segment, {segment})
    writer.tell()
    return writer


def test_where_there_is_no_index_that_is_said(
    redis_server: RedisServer, prefix: str, tmp_path: Path, output: Output, held_port: int
) -> None:
    def problem(*words: str, status: int = 3) -> str:
        assert main(["stats", *words]) == status
        return output.err()

    assert f"no blocks lie under the prefix '{prefix}'" in problem(
        "--url", redis_server.url, "--prefix", prefix
    )
    assert "no Redis answers at" in problem(
        "--url", f"redis://127.0.0.1:{held_port}", "--timeout", "5"
    )
    assert "not one of redis://" in problem("--url", "http://x", status=2)
    assert "Give --config ROUTER.toml or --url" in problem(status=2)
    redis_server.ask("HSET", f"{prefix}:schema", "schema", "999")
    assert "schema 999" in problem("--url", redis_server.url, "--prefix", prefix)
    config = tmp_path / "router.toml"
    config.write_text('[[models]]\nname = "m"\n', encoding="utf-8")
    assert "has no url" in problem("--config", str(config), status=2)
    config.write_text(
        f'[[models]]\nname = "m"\n[shared-index]\nurl = "{redis_server.url}"\nprefix = "nope"\n',
        encoding="utf-8",
    )
    assert "prefix 'nope'" in problem("--config", str(config))
    assert f"prefix '{prefix}x'" in problem("--config", str(config), "--prefix", f"{prefix}x")


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--timeout", "-1", "-1 is not a number above 0"),
        ("--timeout", "0", "0 is not a number above 0"),
        ("--timeout", "inf", "inf is not a number above 0"),
        ("--prefix", "", "'' is not 1 to 64 characters"),
        ("--prefix", "a b", "'a b' is not 1 to 64 characters"),
    ],
)
def test_an_option_that_can_mean_nothing_is_refused(
    option: str, value: str, said: str, output: Output
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["stats", "--url", "redis://127.0.0.1:1", option, value])
    assert ended.value.code == 2
    assert f"argument {option}: {said}" in output.err()


@pytest.mark.parametrize(
    ("pods", "end"),
    [
        ([Compared()], "Nothing was compared with a publisher: the publishers that answered hold no block."),
        (
            [Compared(changed=3), Compared("it is down")],
            "Nothing was compared with a publisher: each of the 3 blocks came or went meanwhile; check again.",
        ),
        ([Compared(keys=1), Compared("it is down")], "Not compared with a publisher: 1 of 2 pods."),
        ([Compared(keys=1)], "Every value can be read, and every sound pod's writer has every bucket."),
    ],
)  # fmt: skip
def test_a_check_ends_with_what_it_did_not_compare(
    pods: list[Compared], end: str, output: Output
) -> None:
    checked = Checked({f"p{n}": pod for n, pod in enumerate(pods)}, Structure([]))
    print_rich(shown(checked))
    assert output.words().endswith(end)
    assert checked.is_whole == (not end.startswith(("Nothing", "Not")))


def test_where_nothing_was_compared_that_is_said(
    redis_server: RedisServer, prefix: str, tmp_path: Path, output: Output
) -> None:
    names, where = KeyNames(prefix), ("--url", redis_server.url, "--prefix", prefix)
    with Edge(redis_server.url) as edge:
        edge.ensure(names)
        nothing = (
            f"nothing under the prefix '{prefix}' but a schema: no publisher has written there"
        )
        assert index("check", *where) == 3
        assert output.words().endswith(f"Nothing was compared with a publisher: {nothing}.")
        assert main(["stats", *where]) == 0
        assert nothing in output.words()
        config = tmp_path / "router.toml"
        config.write_text(
            '[[models]]\nname = "m"\n[[pods]]\nid = "configured"\naddress = "127.0.0.1:1"\nmodel = "m"\n'
            f'[shared-index]\nurl = "{redis_server.url}"\nprefix = "{prefix}"\n',
            encoding="utf-8",
        )
        found = told(output, "check", "--config", str(config), status=3)
        assert found["empty"] == nothing
        assert [one["pod"] for one in found["pods"]] == ["configured"]
        gone = ModelWriter(edge, names, "gone", 1)
        gone.begin()
        gone.record_ends()
        found = told(output, "check", *where, status=3)
        (pod,) = found["pods"]
        assert (pod["pod"], found["empty"], found["well"]) == ("gone", "", True)
        assert "no publisher holds it" in pod["problem"]
        assert found["nothing_compared"].startswith("no pod could be compared")
        assert index("check", *where) == 3
        assert output.words().endswith(f"with a publisher: {found['nothing_compared']}.")


def test_a_wrong_password_is_said(tmp_path: Path, output: Output) -> None:
    with RedisServer("redis", requirepass="right") as server:
        (tmp_path / "password").write_text("wrong\n", encoding="utf-8")
        (tmp_path / "router.toml").write_text(
            f'[[models]]\nname = "m"\n[shared-index]\nurl = "{server.url}"\npassword-file = "password"\n',
            encoding="utf-8",
        )
        assert main(["stats", "--config", str(tmp_path / "router.toml")]) == 3
        said = output.err()
        assert "refuses user or password" in said
        assert "look at shared-index.user and shared-index.password-file" in said
        where = ("--config", str(tmp_path / "router.toml"), "--user", "joe")
        assert main(["stats", *where]) == 3
        assert "look at --user and --password-file" in output.err()
        assert main(["stats", "--url", server.url]) == 3
        assert "wants a password: give it in --password-file" in output.err()


def test_a_user_limited_to_the_prefix_suffices(prefix: str, tmp_path: Path, output: Output) -> None:
    password = tmp_path / "password"
    password.write_text("secret\n", encoding="utf-8")
    commands = (
        "+evalsha +script|load +exists +hgetall +hkeys +hmget +hget +hset +hdel +hlen +hscan +get +set +pttl "
        "+xlen +pexpire +time +del"
    )
    users = (
        "user default on nopass ~* &* +@all",
        f"user looker on >secret ~{prefix}:* resetchannels -@all {commands}",
    )
    names = KeyNames(prefix)
    with RedisServer("redis", users=users) as server:
        with Edge(server.url) as edge:
            edge.ensure(names)
            gone = ModelWriter(edge, names, "gone", 1)
            gone.begin()
            gone.write(0, 3, {4, 5})
            gone.record_ends()
        where = ("--url", server.url, "--prefix", prefix)
        user = ("--user", "looker", "--password-file", str(password))
        found = told(output, "stats", *where, *user)
        assert found["dead_entries"] == 2
        assert found["memory_bytes"] is None
        assert found["servers"][0]["server"] == ""
        assert main(["stats", *where, *user]) == 0
        assert "INFO is not permitted" in output.out()
        assert index("check", *where, *user) == 3
        assert main(["sweep", *where, *user]) == 0
        assert main(["dump", *where, *user]) == 0
        assert '"kind":"segment"' not in output.out()
        assert main(["stats", "--url", server.url, "--prefix", "other", *user]) == 3
        assert "docs/guides/shared-index.md has the ACL" in output.err()


def test_what_is_wrong_counts_where_it_is_wrong_each_time() -> None:
    def keys(*some: int) -> Any:
        return np.array(some, np.uint64)

    first = Difference(keys(1, 2), keys(3), keys())
    later = Difference(keys(2, 4), keys(5), keys())
    both = first.and_also(later)
    assert both.missing.tolist() == [2]
    assert not len(both.extra)
    assert not Difference(keys(), keys(), keys())
