"""What an engine says of itself decides whether its pod is ready."""

import asyncio
import math
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import msgspec
import pytest
from aiohttp import web

from tests.indexer.engine_model import EngineModel
from tests.lab.simworker.local_worker import LocalWorker
from tests.servers.certificates import Authority, Certificate
from tests.servers.http import listening
from warmpath.indexer.engines import vllm
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.follow.instance import Patience, RankSource
from warmpath.indexer.follow.stream_source import RankIngest
from warmpath.indexer.follow.subscribe import Subscriber
from warmpath.indexer.index.memory import MemoryIndex
from warmpath.indexer.ranks import Ingest
from warmpath.indexer.trust import Level
from warmpath.router.config.files import engine_credentials
from warmpath.router.config.schema import ProbeTable
from warmpath.router.load.engine_metrics import Observed
from warmpath.router.pods.probe import LOOKS, MOST_BYTES, Prober
from warmpath.router.pods.table import Pod, Status


class Engine:
    """/health, /metrics and /v1/models."""

    def __init__(self) -> None:
        self.health = 200
        self.asked: list[str] = []
        self.connections: set[object] = set()
        self.missing: set[str] = {"/is_paused", "/is_sleeping"}
        self.is_paused = self.is_sleeping = False
        self.late: set[str] = set()
        """Paths that are never answered."""
        self.cut: Callable[[web.Request], Awaitable[None]] | None = None
        """Cuts the connection on which /health is asked for."""
        self.version_path = "/version"
        self.version = "0.32.0"
        self.models = b'{"object":"list","data":[{"id":"m","object":"model"},{"id":"tuned"}]}'
        self.metrics = (
            b'# HELP x\nvllm:cache_config_info{block_size="16",num_gpu_blocks="97"} 1.0\n'
        )

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        if request.path in self.late:
            await asyncio.Event().wait()
        self.connections.add(request.transport)
        if request.path == "/health" and self.cut is not None:
            await self.cut(request)
        if request.path in self.missing:
            raise web.HTTPNotFound
        if request.path == "/is_paused":
            return web.json_response({"is_paused": self.is_paused})
        if request.path == "/is_sleeping":
            return web.json_response({"is_sleeping": self.is_sleeping})
        if request.path == "/health":
            return web.Response(status=self.health, text="said at length" * 9999)
        if request.path == self.version_path:
            return web.json_response({"version": self.version})
        return web.Response(body=self.metrics if "metrics" in request.path else self.models)


Probed = tuple[Engine, Pod, RankIngest]


@pytest.fixture
async def engine() -> AsyncIterator[Probed]:
    engine = Engine()
    ingest = Ingest(MemoryIndex(), hash_seed="", pending_bytes=1, stale_after=1, clock=lambda: 0.0)
    rank = ingest.add(RankSource("p", 0, "m", vllm.decode, has_replay=False))
    rank.connected()
    async with listening(engine.answer) as address:
        yield engine, Pod("p", address, "m", (rank,)), rank


async def look(prober: Prober, times: int = 1, timeout: float = 300.0) -> None:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout)) as session:
        for _ in range(times):
            await prober.look(session)


def shown(theirs: Certificate, asked_of: Authority | None = None) -> ssl.SSLContext:
    """Return the TLS of an engine with this certificate; callers show one of `asked_of`."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    if asked_of is not None:
        context.load_verify_locations(asked_of.ca)
        context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(theirs.cert, theirs.key)
    return context


async def test_an_engine_with_https_is_asked_so_and_has_to_be_who_its_address_says(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    own = authority.certificate("router")
    table = ProbeTable(ca=authority.ca.name, cert=own.cert.name, key=own.key.name)
    stranger = ProbeTable(ca=authority.ca.name)
    for host, problem in (
        ("127.0.0.1", "/health answers"),
        ("127.0.0.2", "its certificate is refused"),
    ):
        context = shown(authority.certificate("engine", host), authority)
        async with listening(Engine().answer, context) as address:
            pod = Pod("p", address, "m", (), https=True)
            tls = engine_credentials(table, tmp_path)
            await look(Prober(pod, interval=1, timeout=5, tls=tls), 3)
            assert problem in pod.status.reason
            tls = engine_credentials(stranger, tmp_path)
            await look(Prober(pod, interval=1, timeout=5, tls=tls), 3)
            assert pod.status.healthy is False, "the engine wants to see a certificate"


async def test_the_next_connection_to_an_engine_is_made_with_the_newest_files(
    tmp_path: Path,
) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    context = shown(authority.certificate("engine"), authority)
    async with listening(Engine().answer, context) as address:
        pod = Pod("p", address, "m", (), https=True)
        own = other.certificate("wrong").copy("own")
        table = ProbeTable(ca=authority.ca.name, cert=own.cert.name, key=own.key.name)
        tls = engine_credentials(table, tmp_path)
        prober = Prober(pod, interval=1, timeout=5, tls=tls)
        await look(prober, 3)
        assert pod.status.healthy is False
        own.replace(authority.certificate("right"))
        tls.tls.files.look()
        await look(prober, 1)
        assert pod.status.reason == "/health answers"


async def test_engines_with_one_name_are_recognised_by_it_at_any_address(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = shown(authority.certificate("engine", "engines.example"))
    async with listening(Engine().answer, context) as address:
        pod = Pod("p", address, "m", (), https=True)
        for name, problem in (
            ("engines.example", "/health answers"),
            ("", "its certificate is refused"),
            ("other.example", "its certificate is refused"),
        ):
            tls = engine_credentials(ProbeTable(ca=authority.ca.name, server_name=name), tmp_path)
            await look(Prober(pod, interval=1, timeout=5, tls=tls), 3)
            assert problem in pod.status.reason


def test_credentials_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(OSError, match=r"probe\.ca: .*ca\.pem cannot be used: "):
        engine_credentials(ProbeTable(ca="ca.pem"), tmp_path)


async def test_nobody_who_listens_is_said_without_a_word_of_tls() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        pod = Pod("p", address, "m", ())
        await look(Prober(pod, interval=1, timeout=5), 3)
    assert pod.status.reason.startswith(f"cannot connect to {address}: ")
    assert "ssl" not in pod.status.reason
    assert pod.status.healthy is False


class Seen:
    """A sink and a clock."""

    def __init__(self) -> None:
        self.all: list[tuple[str, int, Observed]] = []

    def take(self, pod: str, rank: int, observed: Observed) -> None:
        self.all.append((pod, rank, observed))

    def prober(self, pod: Pod, engine: str = "vllm") -> Prober:
        pod.engine = engine
        return Prober(pod, interval=1, timeout=5, observed=self.take, clock=lambda: 7.0)


async def test_an_engine_that_is_up_tells_its_models_and_the_size_of_its_cache(
    engine: Probed,
) -> None:
    _, pod, rank = engine
    assert pod.ready, "before it is asked, its events speak for it"
    await look(Prober(pod, interval=1, timeout=1))
    assert pod.ready
    assert list(pod.status.models) == ["m", "tuned"]
    assert rank.capacity == 96


async def test_one_failed_look_is_no_reason_two_are(engine: Probed) -> None:
    server, pod, _ = engine
    prober = Prober(pod, interval=1, timeout=1)
    await look(prober)
    server.health = 500
    await look(prober)
    assert pod.ready
    await look(prober)
    assert not pod.ready
    assert pod.status.reason == "/health answers 500"
    server.health = 200
    await look(prober)
    assert pod.ready


async def test_each_cause_for_which_a_pod_is_down_is_logged_once(
    engine: Probed, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    server, pod, _ = engine
    prober = Prober(pod, interval=1, timeout=1)
    for status in (200, 500, 500, 500, 503, 503, 200):
        server.health = status
        await look(prober)
    said = [one.message for one in caplog.records if one.message.startswith("pod p: ")]
    assert said == [
        "pod p: up: /health answers",
        "pod p: down: /health answers 500",
        "pod p: still down: /health answers 503",
        "pod p: restarted: the engine accepted no requests and accepts them again",
        "pod p: up: /health answers",
    ]


@pytest.mark.parametrize(
    "page", [b"nonsense", b"[" * 200_000 + b"]" * 200_000, b'{"data":[{"id":"\xff"}]}']
)
async def test_pages_that_cannot_be_read_are_as_good_as_none(engine: Probed, page: bytes) -> None:
    server, pod, _ = engine
    server.models = server.metrics = page
    await look(Seen().prober(pod, "trtllm"))
    assert pod.ready
    assert not pod.status.models


async def test_names_of_models_and_versions_have_a_length_and_names_a_sum(
    engine: Probed, caplog: pytest.LogCaptureFixture
) -> None:
    server, pod, _ = engine
    names = ["m", "x" * 1025, *(f"{number:01024d}" for number in range(70)), "short"]
    server.models = msgspec.json.encode({"data": [{"id": name} for name in names]})
    server.version = "1" * 129
    await look(Prober(pod, interval=1, timeout=5))
    assert list(pod.status.models) == ["m", *names[2:65], "short"]
    assert "8 names in /v1/models are left out" in caplog.text
    assert not pod.status.version


LOADED = b"""vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
"""


async def test_every_look_tells_the_load_over_one_connection(engine: Probed) -> None:
    server, pod, rank = engine
    server.metrics += LOADED
    seen = Seen()
    await look(seen.prober(pod), 3)
    assert seen.all == [("p", 0, Observed(3, 2, 0.25, 7.0))] * 3
    assert rank.capacity == 96, "one page tells both"
    assert server.asked == [
        "/health", "/metrics", "/is_paused", "/is_sleeping", "/v1/models", "/version",
        "/health", "/metrics", "/health", "/metrics",
    ]  # fmt: skip
    assert len(server.connections) == 1


async def test_an_engine_that_says_nothing_of_its_load_is_up_all_the_same(engine: Probed) -> None:
    server, pod, _ = engine
    seen = Seen()
    for server.metrics in (
        b"",
        b"\xff\x00",
        LOADED.replace(b"3.0", b"NaN").replace(b"2.0", b"-1"),
        LOADED + b" " * MOST_BYTES,
    ):
        await look(seen.prober(pod))
    server.missing = {"/metrics"}
    await look(seen.prober(pod))
    assert pod.ready
    assert not seen.all


async def test_an_engine_that_is_not_well_is_not_asked_for_its_load(engine: Probed) -> None:
    server, pod, _ = engine
    server.metrics, server.health = LOADED, 500
    seen = Seen()
    await look(seen.prober(pod))
    assert not seen.all


async def test_where_prometheus_is_not_served_tensorrt_llms_statistics_are_read(
    engine: Probed,
) -> None:
    server, pod, _ = engine
    server.metrics = b'[{"numActiveRequests":3,"numQueuedRequests":2}]'
    server.missing = {"/prometheus/metrics"}
    seen = Seen()
    await look(seen.prober(pod, "trtllm"))
    assert seen.all == [("p", 0, Observed(3, 2, 0.0, 7.0))]
    assert server.asked[:3] == ["/health", "/prometheus/metrics", "/metrics"]


async def test_an_engine_that_ends_is_told_of_when_that_is_known_and_when_it_is_well_again(
    engine: Probed, held_port: int
) -> None:
    server, pod, _ = engine
    told: list[str] = []
    prober = Prober(pod, interval=1, timeout=5, ended=lambda pod: told.append(pod.id))
    await look(prober, 2)
    server.health = 500
    await look(prober, 2)
    server.health = 200
    await look(prober)
    assert not pod.status.refuses
    assert told == [], "an engine that is slow to answer still has its cache"
    server.health = 503
    await look(prober, 2)
    assert told == ["p"], "what was sent to it is gone"
    server.health = 200
    await look(prober, 2)
    assert told == ["p"] * 2, "and so is what was sent meanwhile"
    address, pod.address = pod.address, f"127.0.0.1:{held_port}"
    await look(prober)
    assert told == ["p"] * 2, "one failed look is no reason"
    pod.address = address
    await look(prober, 2)
    assert told == ["p"] * 3
    pod.address = f"127.0.0.1:{held_port}"
    await look(prober, 3)
    assert told == ["p"] * 4


async def test_adapters_that_are_loaded_while_an_engine_runs_are_found_in_time(
    engine: Probed,
) -> None:
    server, pod, _ = engine
    prober = Prober(pod, interval=1, timeout=5)
    await look(prober)
    server.models = b'{"object":"list","data":[{"id":"m","object":"model"},{"id":"later"}]}'
    await look(prober, LOOKS - 1)
    assert server.asked.count("/v1/models") == 1
    await look(prober)
    assert list(pod.status.models) == ["m", "later"]
    server.missing.add("/v1/models")
    await look(prober, LOOKS)
    assert list(pod.status.models) == ["m", "later"], "what was told is kept"


async def test_an_engine_tells_its_version_and_one_that_is_not_supported_is_not_exact(
    engine: Probed,
) -> None:
    server, pod, rank = engine
    await look(Prober(pod, interval=1, timeout=5))
    assert pod.status.version == "0.32.0"
    pod.engine, pod.status = "sglang", Status()
    server.version_path, server.version = "/server_info", "0.5.6.post2"
    rank.live("", 0, msgspec.msgpack.encode([0.0, [["AllBlocksCleared"]], 0]))
    assert rank.trust.level is Level.EXACT
    await look(Prober(pod, interval=1, timeout=5))
    assert rank.trust.level is Level.DEGRADED
    assert "0.5.6.post2" in rank.trust.reason


@pytest.mark.parametrize(
    "name", [
        "swa_token_usage", "swa_available_tokens", "swa_evictable_tokens",
        "mamba_usage", "mamba_available_tokens", "mamba_evictable_tokens",
    ],
)  # fmt: skip
async def test_an_sglang_that_has_a_cache_beside_the_full_one_is_not_exact(
    engine: Probed, name: str
) -> None:
    server, pod, rank = engine
    pod.engine = "sglang"
    rank.live("", 0, msgspec.msgpack.encode([0.0, [["AllBlocksCleared"]], 0]))
    prober = Prober(pod, interval=1, timeout=5)
    levels = []
    for usage in (b"0.0", b"0", b"0.25", b"0.0"):
        server.metrics = b'sglang:%s{model_name="m"} %s\n' % (name.encode(), usage)
        await look(prober)
        levels.append(rank.trust.level)
    # What was seen once holds for as long as the engine lives.
    assert levels == [Level.EXACT, Level.EXACT, Level.DEGRADED, Level.DEGRADED]
    assert "its events omit them" in rank.trust.reason


async def test_a_worker_that_restarts_while_its_sockets_stay_up_is_found_out(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    # No process lives for less than ten milliseconds, but this simulated engine may.
    monkeypatch.setattr("warmpath.router.pods.probe.LATER_SECONDS", 0.0)
    clock = asyncio.get_running_loop().time
    ingest = Ingest(
        MemoryIndex(), hash_seed="", pending_bytes=1 << 20, stale_after=60.0, clock=clock
    )
    rank = ingest.add(RankSource("p", 0, "m", vllm.decode, has_replay=True, topic="kv"))
    async with LocalWorker() as worker:
        subscriber = Subscriber(
            rank, worker.context, events=worker.ready["events"], replay=worker.ready["replay"],
            patience=Patience(replay_seconds=10.0, reconnect_seconds=0.01, max_frame_bytes=1 << 20),
        )  # fmt: skip
        following = asyncio.create_task(subscriber.run())
        try:
            pod = Pod("p", worker.ready["address"], "m", (rank,))
            told: list[str] = []
            prober = Prober(pod, interval=1, timeout=5, ended=lambda pod: told.append(pod.id))
            await look(prober)
            await worker.generate()
            # A batch that came only after the restart would count as the new process's.
            last = len(await worker.replayed()) - 1
            while rank.sequence != last or rank.trust.level is not Level.EXACT:
                await asyncio.sleep(0.005)
            assert rank.blocks().get(Tier.GPU)
            await look(prober)
            await worker.post("/faults", {"restart": True})
            assert rank.trust.level is Level.EXACT, "nothing in its events tells"
            await look(prober)
            assert "pod p: restarted" in caplog.text
            assert told == ["p"], "what was sent to it is gone"
            while rank.stream.counts.restarts == 0 or rank.trust.level is not Level.EXACT:
                await asyncio.sleep(0.005)
            assert not rank.blocks().get(Tier.GPU)
            await look(prober, 3)
            assert rank.stream.counts.restarts == 1
        finally:
            # Its sockets would keep the worker's context from ending.
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


@pytest.mark.parametrize("problem", ["refuses", "is not there"])
async def test_an_engine_that_was_away_and_does_not_say_when_it_began_is_doubted(
    engine: Probed, problem: str, held_port: int
) -> None:
    server, pod, rank = engine
    prober = Prober(pod, interval=1, timeout=5)
    rank.live("", *EngineModel().store((0, 1)))
    await look(prober, 2)
    address = pod.address
    if problem == "refuses":
        server.health = 503
    else:
        pod.address = f"127.0.0.1:{held_port}"
    await look(prober)
    pod.address, server.health = address, 200
    assert rank.trust.level is Level.EXACT
    await look(prober)
    assert rank.trust.level is Level.DEGRADED
    assert rank.trust.reason.startswith(
        "restarted: the engine accepted no requests and accepts them"
    )


async def test_an_engine_that_was_away_and_began_no_later_is_not_doubted(engine: Probed) -> None:
    server, pod, rank = engine
    prober = Prober(pod, interval=1, timeout=5)
    rank.live("", *EngineModel().store((0, 1)))
    server.metrics = b"process_start_time_seconds 100.5\n"
    await look(prober)
    for health in (503, 200, 500, 500, 200):
        server.health = health
        await look(prober)
    assert rank.trust.level is Level.EXACT
    server.models = b'{"data":[{"id":"other"}]}'
    await look(prober, LOOKS)
    assert rank.trust.level is Level.EXACT


async def test_an_engine_that_was_slow_or_never_well_is_not_doubted(engine: Probed) -> None:
    server, pod, rank = engine
    prober = Prober(pod, interval=1, timeout=5)
    rank.live("", *EngineModel().store((0, 1)))
    for health in (503, 200, 500, 500, 200):
        server.health = health
        await look(prober)
    assert rank.trust.level is Level.EXACT, "its first life has told all"


async def test_an_engine_whose_events_have_told_of_its_new_life_is_not_doubted(
    engine: Probed,
) -> None:
    server, pod, rank = engine
    prober = Prober(pod, interval=1, timeout=5)
    old, new = EngineModel(), EngineModel()
    rank.live("", *old.store((0, 1)))
    rank.live("", *old.store((1, 2)))
    await look(prober)
    server.health = 503
    await look(prober)
    rank.live("", *new.store((0, 3)))
    assert rank.stream.counts.restarts == 1
    trust = rank.trust
    server.health = 200
    await look(prober)
    assert rank.trust == trust


async def test_an_engine_that_serves_another_model_is_doubted_and_adapters_come_and_go(
    engine: Probed,
) -> None:
    server, pod, rank = engine
    prober = Prober(pod, interval=1, timeout=5)
    rank.live("", *EngineModel().store((0, 1)))
    for listed in (b'{"id":"m"},{"id":"a","parent":"m"}', b'{"id":"m"}', b'{"id":"m"},{"id":"b"}'):
        server.models = b'{"data":[' + listed + b"]}"
        await look(prober, LOOKS)
        assert rank.trust.level is Level.EXACT
    server.models = b'{"data":[{"id":"n"},{"id":"b"}]}'
    await look(prober, LOOKS)
    assert rank.trust.level is Level.DEGRADED
    assert rank.trust.reason.startswith("restarted: it no longer serves a model")


async def test_an_engine_that_restarts_is_doubted_at_once_where_nothing_can_be_replayed(
    engine: Probed,
) -> None:
    server, pod, rank = engine
    prober = Prober(pod, interval=1, timeout=5)
    rank.live("", *EngineModel().store((0, 1)))
    for started in (b"100.5", b"100.5", b"99", b"nonsense", b"NaN", b"inf"):
        server.metrics = b"process_start_time_seconds " + started + b"\n"
        await look(prober)
        assert rank.trust.level is Level.EXACT, "one of several processes began before another"
    server.metrics = b"process_start_time_seconds 160.5\n"
    await look(prober)
    assert rank.trust.level is Level.DEGRADED
    assert rank.trust.reason.startswith("restarted: the engine's process started 60.0 s after")


async def test_a_pod_cannot_have_other_hosts_asked(engine: Probed) -> None:
    other, other_pod, _ = engine

    async def redirect(request: web.Request) -> web.Response:
        raise web.HTTPFound(f"http://{other_pod.address}{request.path}")

    async with listening(redirect) as address:
        pod = Pod("q", address, "m", ())
        await look(Prober(pod, interval=1, timeout=5))
    assert (pod.status.healthy, pod.status.reason) == (False, "/health answers 302")
    assert not other.asked


SPECULATES = b"""# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 0.0
"""


def stored(**more: object) -> bytes:
    return msgspec.msgpack.encode(
        [1.0, [{"type": "BlockStored", "block_hashes": [7], "parent_block_hash": None,
                "token_ids": [1, 2], "block_size": 2, "lora_id": None, "medium": "GPU"} | more], 0]
    )  # fmt: skip


async def test_an_engine_that_drafts_tokens_is_exact_only_where_its_events_tell_what_it_needs(
    engine: Probed,
) -> None:
    server, pod, rank = engine
    rank.live("", 0, stored())
    await look(prober := Prober(pod, interval=1, timeout=5))
    assert rank.trust.level is Level.EXACT
    server.metrics += SPECULATES
    await look(prober)
    assert rank.trust.level is Level.DEGRADED
    assert "lookahead_token_ids" in rank.trust.reason
    server.metrics = b""  # no answer says that it has another drafter now
    await look(prober)
    assert rank.trust.level is Level.DEGRADED
    pod.may_be_eagle = False
    await look(prober)
    assert rank.trust.level is Level.EXACT


async def test_an_engine_whose_events_tell_the_next_tokens_is_exact_with_a_drafter(
    engine: Probed,
) -> None:
    server, pod, rank = engine
    server.metrics += SPECULATES
    rank.live("", 0, stored(lookahead_token_ids=[[3]]))
    await look(Prober(pod, interval=1, timeout=5))
    assert rank.trust.level is Level.EXACT


@pytest.mark.parametrize("is_seen_away", [True, False])
async def test_what_an_engine_showed_of_its_options_ends_with_its_life(
    engine: Probed, *, is_seen_away: bool
) -> None:
    server, pod, rank = engine
    rank.live("", 0, stored())
    size = b'process_start_time_seconds %d\nvllm:cache_config_info{num_gpu_blocks="%d"} 1.0\n'
    server.metrics = size % (100, 11) + SPECULATES
    await look(prober := Prober(pod, interval=1, timeout=5))
    assert "lookahead" in rank.trust.reason
    if is_seen_away:
        server.health = 503
        await look(prober)
    server.health, server.metrics = 200, size % (200, 21)
    await look(prober)
    assert not pod.status.drafts
    assert "lookahead" not in rank.trust.reason
    assert rank.capacity == 20
    await look(prober)
    assert pod.status.models


@pytest.mark.parametrize("size", [b"9" * 5000, b"0", b"1", b"-1"])
async def test_a_cache_of_a_size_that_no_cache_has_is_not_learnt(
    engine: Probed, size: bytes
) -> None:
    server, pod, rank = engine
    server.metrics = b'vllm:cache_config_info{num_gpu_blocks="%s"} 1.0\n' % size
    await look(Prober(pod, interval=1, timeout=5))
    assert pod.ready
    assert rank.capacity == 0


class Signs:
    """A clock, the time of a pod's last answer, and its prober, which waits for no answer for long."""

    def __init__(self, pod: Pod) -> None:
        self.now, self.answered = 100.0, -math.inf
        self.ended: list[str] = []
        self.prober = Prober(
            pod,
            interval=1,
            timeout=1,
            ended=lambda pod: self.ended.append(pod.id),
            answered=lambda _: self.answered,
            clock=lambda: self.now,
        )

    async def look(self, times: int = 1, timeout: float = 0.05) -> None:
        for _ in range(times):
            self.now += 4.0
            await look(self.prober, timeout=timeout)


async def test_a_late_health_is_no_reason_while_events_arrive(engine: Probed) -> None:
    server, pod, rank = engine
    signs = Signs(pod)
    server.late = {"/health"}
    await signs.look()
    assert pod.ready, "nothing is known yet but that it is late"
    for sequence in range(5):
        rank.live("", sequence, msgspec.msgpack.encode([0.0, [], None]))
        await signs.look(2)
        assert pod.ready
    await signs.look(3)
    assert not pod.ready
    assert pod.is_only_late
    rank.disconnected()
    assert not pod.is_only_late


async def reset_at_once(request: web.Request) -> None:
    assert request.transport is not None
    request.transport.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
    )
    request.transport.abort()


async def close_at_once(request: web.Request) -> None:
    assert request.transport is not None
    request.transport.close()


async def break_off(request: web.Request) -> None:
    response = web.StreamResponse(headers={"Content-Length": "99"})
    await response.prepare(request)
    await response.write(b"partly")
    await close_at_once(request)


@pytest.mark.parametrize(
    "says", ["late", 408, 425, 429, 504, reset_at_once, close_at_once, break_off]
)
async def test_a_late_or_busy_health_or_a_cut_connection_is_no_reason_while_answers_arrive(
    engine: Probed, says: str | int | Callable[[web.Request], Awaitable[None]]
) -> None:
    server, pod, _ = engine
    pod.has_events, signs = False, Signs(pod)
    timeout = 0.05 if says == "late" else 30.0
    await signs.look(timeout=30.0)
    if isinstance(says, str):
        server.late = {"/health"}
    elif isinstance(says, int):
        server.health = says
    else:
        server.cut = says
    for _ in range(8):
        signs.answered = signs.now
        await signs.look(timeout=timeout)
        assert (pod.ready, pod.status.is_late) == (True, True)
        assert pod.status.models == ("m", "tuned")
    await signs.look(3, timeout=timeout)
    assert (pod.ready, pod.is_only_late) == (False, True), "no answer comes any more"
    assert not signs.ended
    server.health, server.cut, server.late = 200, None, set()
    await signs.look(timeout=30.0)
    assert (pod.ready, pod.status.is_late, pod.status.reason) == (True, False, "/health answers")


async def test_metrics_are_read_of_a_pod_whose_health_is_late(engine: Probed) -> None:
    server, pod, _ = engine
    server.metrics = b"vllm:num_requests_running 3\nvllm:num_requests_waiting 1\n"
    server.late = {"/health"}
    seen = Seen()
    prober = Prober(pod, interval=1, timeout=1, observed=seen.take)
    await look(prober, timeout=0.05)
    assert [one.requests for _, _, one in seen.all] == [4]


@pytest.mark.parametrize("status", [500, 503])
async def test_a_pod_that_was_late_and_then_refuses_is_down_at_once(
    engine: Probed, status: int
) -> None:
    server, pod, _ = engine
    signs = Signs(pod)
    await signs.look()
    server.late = {"/health"}
    signs.answered = math.inf
    await signs.look(2)
    assert pod.ready
    server.late, server.health = set(), status
    await signs.look()
    assert not pod.ready
    assert not pod.is_only_late
    assert pod.status.refuses is (status == 503)
    server.late = {"/health"}
    await signs.look()
    assert pod.ready is (status != 503), "one that drains answers still, and takes no more requests"


async def test_an_engine_that_ends_while_it_is_late_has_ended(
    engine: Probed, held_port: int
) -> None:
    server, pod, _ = engine
    signs = Signs(pod)
    await signs.look()
    server.late = {"/health"}
    await signs.look(4)
    assert (pod.ready, signs.ended) == (False, [])
    pod.address = f"127.0.0.1:{held_port}"
    await signs.look()
    assert (pod.ready, pod.is_only_late, signs.ended) == (False, False, ["p"])


def sleep_page(awake: int, offloaded: int, discarded: int) -> bytes:
    """Return vLLM's series of the sleep states of two engines, of which the second is as given."""
    states = {"awake": awake, "weights_offloaded": offloaded, "discard_all": discarded}
    rows = [
        f'vllm:engine_sleep_state{{engine="{engine}",sleep_state="{state}"}} {value:.1f}'
        for engine, given in enumerate(({"awake": 1}, states))
        for state, value in ({"weights_offloaded": 0, "discard_all": 0} | given).items()
    ]
    return "\n".join(rows).encode()


@pytest.mark.parametrize("states", [(0, 1, 0), (0, 0, 1)])
async def test_an_engine_that_sleeps_refuses_requests_and_holds_nothing(
    engine: Probed, states: tuple[int, int, int]
) -> None:
    server, pod, rank = engine
    ended: list[str] = []
    prober = Prober(pod, interval=1, timeout=5, ended=lambda pod: ended.append(pod.id))
    server.metrics = sleep_page(1, 0, 0)
    rank.live("", *EngineModel().store((0, 1)))
    await look(prober)
    assert pod.ready
    assert any(rank.blocks().values())
    server.metrics = sleep_page(*states)
    await look(prober, 2)
    assert (pod.ready, pod.status.refuses, ended) == (False, True, ["p"])
    assert not any(rank.blocks().values())
    assert "vllm:engine_sleep_state" in pod.status.reason
    server.late = {"/metrics"}
    await look(prober, timeout=0.05)
    assert not pod.ready, "nothing says that it is awake"
    server.late, server.metrics = set(), sleep_page(1, 0, 0)
    await look(prober)
    assert (pod.ready, pod.status.refuses) == (True, False)
    assert not any(rank.blocks().values())


async def test_an_engine_that_is_paused_is_not_ready_and_keeps_its_blocks(engine: Probed) -> None:
    server, pod, rank = engine
    prober = Prober(pod, interval=1, timeout=5)
    rank.live("", *EngineModel().store((0, 1)))
    for page, is_paused in ((sleep_page(0, 0, 0), False), (sleep_page(1, 0, 0), True)):
        server.missing = set() if is_paused else {"/is_paused"}
        server.metrics, server.is_paused = page, is_paused
        await look(prober, LOOKS + 1)
        assert (pod.ready, pod.status.refuses) == (False, False)
        server.metrics, server.is_paused = sleep_page(1, 0, 0), False
        await look(prober)
        assert pod.ready
    assert any(rank.blocks().values())
