"""The publisher as it runs with TLS, who may watch it and its engine's TLS; and writing to the shared index in Redis."""

import asyncio
import ssl
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families as families

from tests.indexer.shared.redis_model import read_bucket
from tests.indexer.trtllm_answers import CREATED, answer
from tests.publisher.published_pod import FULL, IDS, Pod, asking, router_config, watching
from tests.servers.certificates import Authority, Certificate
from tests.servers.http import serving
from tests.servers.redis_server import RedisServer
from tests.waiting import until
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.keys.key import Keyspace, chain, fingerprint, pack_tokens
from warmpath.indexer.keys.segment import SEGMENT
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.layout.record import Record, read_record
from warmpath.lab.local.cluster import MODEL
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.publisher.assemble import publishing
from warmpath.publisher.main import main
from warmpath.publisher.metrics import DECLARED
from warmpath.publisher.settings import Settings


def watching_with(shown: Certificate, authority: Path) -> str:
    return f'[watch]\nca = "{authority}"\ncert = "{shown.cert}"\nkey = "{shown.key}"\n'


def flags(shown: Certificate, clients: Path) -> tuple[str, str, str]:
    return f"--tls-cert={shown.cert}", f"--tls-key={shown.key}", f"--tls-client-ca={clients}"


async def watched(pod: Pod, folder: Path, table: str = "", refused: str = "") -> None:
    """Let a router with a table watch the publisher until it has all, or is refused for a reason."""
    async with asking(table + router_config(pod), folder) as asker:
        await asker.until(
            lambda score: refused in score.trust.reason if refused else score.matched_tokens == FULL
        )


async def test_with_tls_both_sides_must_show_who_they_are(pod: Pod, tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    await pod.publish(*flags(ours.certificate("publisher"), ours.ca))
    await pod.generate(IDS)
    await watched(pod, tmp_path, watching_with(ours.certificate("router"), ours.ca))
    stranger = watching_with(theirs.certificate("router"), ours.ca)
    await watched(pod, tmp_path, stranger, refused="UNAVAILABLE")
    await watched(pod, tmp_path, refused="UNAVAILABLE")


@pytest.mark.deep
async def test_both_sides_take_new_certificates_and_the_stream_goes_on(
    pod: Pod, tmp_path: Path
) -> None:
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    theirs, mine = (
        old.certificate("theirs-1").copy("theirs"),
        old.certificate("mine-1").copy("mine"),
    )
    ca = tmp_path / "authority.pem"
    ca.write_bytes(old.ca.read_bytes())
    await pod.publish(*flags(theirs, ca))
    await pod.generate(IDS)
    config = watching_with(mine, ca) + router_config(pod)
    async with asking(config, tmp_path) as asker:
        await asker.until(lambda score: score.matched_tokens == FULL)
        theirs.replace(new.certificate("theirs-2"))
        mine.replace(new.certificate("mine-2"))
        ca.write_bytes(new.ca.read_bytes())
        # A router that comes later is let in by the new authority alone.
        await watched(pod, tmp_path, watching_with(new.certificate("late"), new.ca))
        score = await asker.score()
        assert (score.matched_tokens, score.trust.level) == (FULL, pb.Trust.EXACT)
        assert "watch:" not in (tmp_path / "publisher.log").read_text()
        # The next connection of the router that was there before is made with the new files.
        await pod.publisher.stop()
        await asker.until(lambda score: score.trust.level == pb.Trust.STALE)
        await pod.publish(*flags(theirs, ca))
        await asker.until(lambda score: score.matched_tokens == FULL)


@pytest.mark.deep
async def test_only_routers_with_an_allowed_name_may_watch(pod: Pod, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    named = ("--tls-client-name=other", "--tls-client-name=router.example")
    await pod.publish(*flags(authority.certificate("theirs"), authority.ca), *named)
    await pod.generate(IDS)
    for name, refused in (("router.example", ""), ("gateway.example", "PERMISSION_DENIED")):
        shown = authority.certificate("caller", name)
        await watched(pod, tmp_path, watching_with(shown, authority.ca), refused)


async def test_its_metrics_are_encrypted_too_and_for_those_with_a_certificate(
    pod: Pod, tmp_path: Path, held_port: int
) -> None:
    authority = Authority(tmp_path)
    at = (f"--metrics-listen=127.0.0.1:{held_port}", "--tls-client-name=prometheus")
    await pod.publish(*flags(authority.certificate("theirs"), authority.ca), *at)
    url = f"https://127.0.0.1:{held_port}/metrics"
    async with aiohttp.ClientSession() as http:
        for shown, status in (("prometheus", 200), ("other", 403), ("", 0)):
            context = ssl.create_default_context(cafile=authority.ca)
            if shown:
                caller = authority.certificate(shown)
                context.load_cert_chain(caller.cert, caller.key)
            try:
                async with http.get(url, ssl=context) as response:
                    assert response.status == status
            except aiohttp.ClientError:
                assert not status


async def test_a_publisher_that_others_reach_unprotected_says_so(pod: Pod, tmp_path: Path) -> None:
    await pod.publish("--listen=0.0.0.0:0", "--insecure")
    log = (tmp_path / "publisher.log").read_text()
    assert (
        "--listen: other machines reach 0.0.0.0:0, which lacks --tls-cert and --tls-client-ca"
        in log
    )


def test_files_that_are_no_certificates_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = Authority(tmp_path).certificate("theirs")
    (tmp_path / "text.pem").write_text("no certificate")
    for flags, named in (
        ([f"--tls-cert={tmp_path / 'text.pem'}"], "--tls-cert: "),
        (
            [f"--tls-cert={theirs.cert}", f"--tls-client-ca={tmp_path / 'text.pem'}"],
            "--tls-client-ca: ",
        ),
    ):
        base = ["--pod=p", "--model=m", "--events=tcp://127.0.0.1:1", "--metrics-listen="]
        assert main([*base, f"--tls-key={theirs.key}", *flags]) == 1
        assert f"warmpath publish: {named}" in capsys.readouterr().err


def settings(address: str, **tls: Path) -> Settings:
    return Settings(
        pod="p", model="m", engine="trtllm", events=f"https://{address}/kv_cache_events", replay="",
        topic="", ranks=1, first_rank=0, blocks=0, block_size=32, hash_seed="",
        listen="127.0.0.1:0", metrics_listen="", journal_bytes=1 << 20, max_watchers=4, **tls,
    )  # fmt: skip


async def test_it_follows_an_engine_over_tls_with_the_newest_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    events = [answer(CREATED)]

    async def engine(_: web.Request) -> web.Response:
        return web.Response(body=events.pop() if events else b"[]")

    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    shown = ours.certificate("publisher")
    ca = tmp_path / "engine-ca.pem"
    ca.write_bytes(ours.ca.read_bytes())
    async with serving(theirs, engine, client_ca=ours.ca) as address:
        files = {"engine_ca": ca, "engine_cert": shown.cert, "engine_key": shown.key}
        async with publishing(settings(address, **files)) as running, asyncio.timeout(60):
            (rank,) = running.cache.ranks
            while "its certificate is refused" not in caplog.text:
                await asyncio.sleep(0.01)
            ca.write_bytes(theirs.ca.read_bytes())
            while not rank.is_connected:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["--engine-cert=a.pem"], "--engine-cert and --engine-key: give both or none"),
        (["--engine-ca=a.pem"], "--engine-ca: needs --events https://"),
        (["--events=https://h:1/e", "--engine-ca=none.pem"], "--engine-ca: there is no file"),
    ],
)
def test_files_that_contradict_the_rest_are_refused(
    given: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--pod=p", "--model=m", "--engine=trtllm", "--events=http://h:1/e", *given])
    assert problem in capsys.readouterr().err


def test_a_file_that_is_no_certificate_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    given = ["--pod=p", "--model=m", "--engine=trtllm", "--events=https://h:1/e"]
    assert main([*given, f"--engine-ca={text}", "--listen=127.0.0.1:0"]) == 1
    assert f"--engine-ca: {text} cannot be used" in capsys.readouterr().err


LEASE = 2
KEYS = chain(Keyspace(model=MODEL, block_size=16).root(), pack_tokens(IDS), 16)


def options(server: RedisServer, prefix: str) -> tuple[str, ...]:
    return (f"--redis={server.url}", f"--redis-prefix={prefix}", f"--redis-lease-seconds={LEASE}")


def record_of(server: RedisServer, names: KeyNames) -> Record | None:
    return read_record(server.ask("HGETALL", names.record("p")))


def holds(server: RedisServer, names: KeyNames, keys: list[int]) -> bool:
    """Whether a sound record says so, and its slots are where readers look for these keys."""
    record = record_of(server, names)
    if record is None or not record.sound or record.claim is None:
        return False
    slots = {record.claim.slot(n) for n, spot in enumerate(record.claim.places) if spot}
    found: dict[int, set[int]] = {}
    for segment in keys[::SEGMENT]:
        bucket = server.ask("HGETALL", names.bucket(names.bucket_of(segment)))
        value = bucket.get(segment.to_bytes(8, "little"))
        if value is not None:
            found |= read_bucket({segment.to_bytes(8, "little"): value})[1]
    return all(found.get(key, set()) & slots for key in keys)


async def test_what_the_worker_caches_is_in_redis_and_gone_within_the_lease_of_its_publisher(
    pod: Pod, redis_server: RedisServer, prefix: str
) -> None:
    names = KeyNames(prefix)
    await pod.publish(*options(redis_server, prefix))
    await pod.generate(IDS)
    await until(lambda: holds(redis_server, names, KEYS[:-1]))
    record = record_of(redis_server, names)
    assert record is not None
    assert record.claim is not None
    assert record.claim.watch == pod.address
    assert record.claim.model == MODEL
    assert record.claim.keyspace == fingerprint(MODEL, "")
    assert record.blocks[0][Tier.GPU] >= len(KEYS) - 1
    pod.publisher.kill()
    await until(lambda: record_of(redis_server, names) is None)


async def test_where_others_reach_it_is_told_as_it_is_advertised(
    pod: Pod, redis_server: RedisServer, prefix: str
) -> None:
    names = KeyNames(prefix)
    await pod.publish(*options(redis_server, prefix), "--advertise=publisher.example:7500")
    await until(lambda: (record := record_of(redis_server, names)) and record.claim)
    record = record_of(redis_server, names)
    assert record is not None
    assert record.claim is not None
    assert record.claim.watch == "publisher.example:7500"


async def test_it_starts_and_serves_watchers_while_redis_is_away_and_writes_when_it_is_there(
    pod: Pod, prefix: str, held_port: int
) -> None:
    names = KeyNames(prefix)
    with RedisServer("redis") as server:
        server.stop()
        await pod.publish(*options(server, prefix), f"--metrics-listen=127.0.0.1:{held_port}")
        await pod.generate(IDS)
        async with watching(pod) as watch:
            async for response in watch():
                if response.HasField("part") or response.HasField("delta"):
                    break
            else:
                raise AssertionError("it serves nothing")
        url = f"http://127.0.0.1:{held_port}/metrics"
        async with aiohttp.ClientSession() as http:

            async def metrics() -> str:
                async with http.get(url) as response:
                    return await response.text()

            while "warmpath_publisher_redis_trouble 1.0" not in await metrics():
                await asyncio.sleep(0.02)
            server.restart()
            await until(lambda: holds(server, names, KEYS[:-1]))
            text = ""
            while (
                "warmpath_publisher_redis_audits_total 0.0" in text
                or 'warmpath_publisher_redis_state{state="current"} 1.0' not in text
            ):
                await asyncio.sleep(0.02)
                text = await metrics()
    assert 'warmpath_publisher_redis_rebuilds_total{cause="start"} 1.0' in text
    shown = {one.name.removeprefix("warmpath_publisher_") for one in families(text)}
    assert shown >= DECLARED.keys()


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("--redis=http://h:1", "--redis:"),
        ("--redis=redis://u:secret@h:1", "`--redis-user` and the password in a file by `--redis-p"),
        ("--redis-user=u", "publish: --redis-user: needs a --redis-password-file"),
        ("--redis-password-file=/nowhere/x", "publish: --redis-password-file: there is no file /nowhere/x"),
        ("--redis-ca=/dev/null", "publish: --redis-ca: is for TLS"),
    ],
)  # fmt: skip
def test_what_redis_cannot_be_reached_with_is_said_at_the_start(
    given: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--pod=p", "--model=m", "--events=tcp://127.0.0.1:1", "--listen=127.0.0.1:0"]
    options += ["--metrics-listen=", "--redis=redis://127.0.0.1:1", given]
    with pytest.raises(SystemExit, match="2"):
        main(options)
    assert named in capsys.readouterr().err


def test_a_file_for_redis_that_is_there_may_be_right_at_the_next_start(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--pod=p", "--model=m", "--events=tcp://127.0.0.1:1", "--listen=127.0.0.1:0"]
    options += ["--metrics-listen=", "--redis=rediss://127.0.0.1:1", f"--redis-ca={__file__}"]
    assert main(options) == 1
    assert __file__ in capsys.readouterr().err
