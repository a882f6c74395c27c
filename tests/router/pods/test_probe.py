"""What an engine says of itself decides whether its pod is ready."""

import asyncio
import math
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from tests.indexer.engine_model import EngineModel
from tests.indexer.followed import new_ingest, source
from tests.indexer.memory_index import MemoryIndex
from tests.indexer.sides import stored
from tests.lab.simworker.local_worker import LocalWorker
from tests.router.pods.engine import Engine
from tests.servers.certificates import Authority, Certificate
from tests.servers.http import listening
from tests.waiting import until
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.follow.instance import Patience
from warmpath.indexer.follow.subscribe import Subscriber
from warmpath.indexer.trust import Level
from warmpath.router.config.files import engine_credentials
from warmpath.router.config.schema import ProbeTable
from warmpath.router.load.engine_metrics import Observed
from warmpath.router.pods.probe import LOOKS, MOST_BYTES
from warmpath.router.pods.table import Pod, Status


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
        async with Engine().serving(
            shown(authority.certificate("engine", host), authority)
        ) as engine:
            engine.prober.tls = engine_credentials(table, tmp_path)
            await engine.look(3)
            assert problem in engine.status.reason
            engine.prober.tls = engine_credentials(stranger, tmp_path)
            await engine.look(3)
            assert engine.status.healthy is False, "the engine wants to see a certificate"


async def test_the_next_connection_to_an_engine_is_made_with_the_newest_files(
    tmp_path: Path,
) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    async with Engine().serving(shown(authority.certificate("engine"), authority)) as engine:
        own = other.certificate("wrong").copy("own")
        table = ProbeTable(ca=authority.ca.name, cert=own.cert.name, key=own.key.name)
        engine.prober.tls = tls = engine_credentials(table, tmp_path)
        await engine.look(3)
        assert engine.status.healthy is False
        own.replace(authority.certificate("right"))
        tls.tls.files.look()
        await engine.look()
        assert engine.status.reason == "/health answers"


async def test_engines_with_one_name_are_recognised_by_it_at_any_address(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with Engine().serving(
        shown(authority.certificate("engine", "engines.example"))
    ) as engine:
        for name, problem in (
            ("engines.example", "/health answers"),
            ("", "its certificate is refused"),
            ("other.example", "its certificate is refused"),
        ):
            table = ProbeTable(ca=authority.ca.name, server_name=name)
            engine.prober.tls = engine_credentials(table, tmp_path)
            await engine.look(3)
            assert problem in engine.status.reason


def test_credentials_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(OSError, match=r"probe\.ca: .*ca\.pem cannot be used: "):
        engine_credentials(ProbeTable(ca="ca.pem"), tmp_path)


async def test_nobody_who_listens_is_said_without_a_word_of_tls(held_port: int) -> None:
    engine = Engine()
    engine.pod.address = f"127.0.0.1:{held_port}"
    await engine.look(3)
    assert engine.status.reason.startswith(f"cannot connect to {engine.pod.address}: ")
    assert "ssl" not in engine.status.reason
    assert engine.status.healthy is False


async def test_an_engine_that_is_up_tells_its_models_and_the_size_of_its_cache(
    engine: Engine,
) -> None:
    assert engine.pod.ready, "before it is asked, its events speak for it"
    await engine.look()
    assert engine.pod.ready
    assert list(engine.status.models) == ["m", "tuned"]
    assert engine.rank.capacity == 96


async def test_one_failed_look_is_no_reason_two_are(engine: Engine) -> None:
    await engine.look()
    engine.health = 500
    await engine.look()
    assert engine.pod.ready
    await engine.look()
    assert not engine.pod.ready
    assert engine.status.reason == "/health answers 500"
    engine.health = 200
    await engine.look()
    assert engine.pod.ready


async def test_each_cause_for_which_a_pod_is_down_is_logged_once(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for status in (200, 500, 500, 500, 503, 503, 200):
        engine.health = status
        await engine.look()
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
async def test_pages_that_cannot_be_read_are_as_good_as_none(engine: Engine, page: bytes) -> None:
    engine.models = engine.metrics = page
    engine.pod.engine = "trtllm"
    await engine.look()
    assert engine.pod.ready
    assert not engine.status.models


async def test_names_of_models_and_versions_have_a_length_and_names_a_sum(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    names = ["m", "x" * 1025, *(f"{number:01024d}" for number in range(70)), "short"]
    engine.models = msgspec.json.encode({"data": [{"id": name} for name in names]})
    engine.version = "1" * 129
    await engine.look()
    assert list(engine.status.models) == ["m", *names[2:65], "short"]
    assert "8 names in /v1/models are left out" in caplog.text
    assert not engine.status.version


LOADED = b"""vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
"""


async def test_every_look_tells_the_load_over_one_connection(engine: Engine) -> None:
    engine.metrics += LOADED
    await engine.look(3)
    assert engine.seen == [("p", 0, Observed(3, 2, 0.25, at)) for at in (104.0, 108.0, 112.0)]
    assert engine.rank.capacity == 96, "one page tells both"
    assert engine.asked == [
        "/health", "/metrics", "/is_paused", "/is_sleeping", "/v1/models", "/version",
        "/health", "/metrics", "/health", "/metrics",
    ]  # fmt: skip
    assert len(engine.connections) == 1


async def test_an_engine_that_says_nothing_of_its_load_is_up_all_the_same(engine: Engine) -> None:
    for engine.metrics in (
        b"",
        b"\xff\x00",
        LOADED.replace(b"3.0", b"NaN").replace(b"2.0", b"-1"),
        LOADED + b" " * MOST_BYTES,
    ):
        await engine.look()
    engine.missing = {"/metrics"}
    await engine.look()
    assert engine.pod.ready
    assert not engine.seen


async def test_an_engine_that_is_not_well_is_not_asked_for_its_load(engine: Engine) -> None:
    engine.metrics, engine.health = LOADED, 500
    await engine.look()
    assert not engine.seen


async def test_where_prometheus_is_not_served_tensorrt_llms_statistics_are_read(
    engine: Engine,
) -> None:
    engine.metrics = b'[{"numActiveRequests":3,"numQueuedRequests":2}]'
    engine.missing, engine.pod.engine = {"/prometheus/metrics"}, "trtllm"
    await engine.look()
    assert engine.seen == [("p", 0, Observed(3, 2, 0.0, 104.0))]
    assert engine.asked[:3] == ["/health", "/prometheus/metrics", "/metrics"]


async def test_an_engine_that_ends_is_told_of_when_that_is_known_and_when_it_is_well_again(
    engine: Engine, held_port: int
) -> None:
    await engine.look(2)
    engine.health = 500
    await engine.look(2)
    engine.health = 200
    await engine.look()
    assert not engine.status.refuses
    assert engine.ended == [], "an engine that is slow to answer still has its cache"
    engine.health = 503
    await engine.look(2)
    assert engine.ended == ["p"], "what was sent to it is gone"
    engine.health = 200
    await engine.look(2)
    assert engine.ended == ["p"] * 2, "and so is what was sent meanwhile"
    address, engine.pod.address = engine.pod.address, f"127.0.0.1:{held_port}"
    await engine.look()
    assert engine.ended == ["p"] * 2, "one failed look is no reason"
    engine.pod.address = address
    await engine.look(2)
    assert engine.ended == ["p"] * 3
    engine.pod.address = f"127.0.0.1:{held_port}"
    await engine.look(3)
    assert engine.ended == ["p"] * 4


async def test_adapters_that_are_loaded_while_an_engine_runs_are_found_in_time(
    engine: Engine,
) -> None:
    await engine.look()
    engine.models = b'{"object":"list","data":[{"id":"m","object":"model"},{"id":"later"}]}'
    await engine.look(LOOKS - 1)
    assert engine.asked.count("/v1/models") == 1
    await engine.look()
    assert list(engine.status.models) == ["m", "later"]
    engine.missing.add("/v1/models")
    await engine.look(LOOKS)
    assert list(engine.status.models) == ["m", "later"], "what was told is kept"


async def test_an_engine_tells_its_version_and_one_that_is_not_supported_is_not_exact(
    engine: Engine,
) -> None:
    await engine.look()
    assert engine.status.version == "0.32.0"
    engine.pod.engine, engine.pod.status = "sglang", Status()
    engine.version_path, engine.version = "/server_info", "0.5.6.post2"
    engine.rank.live("", 0, msgspec.msgpack.encode([0.0, [["AllBlocksCleared"]], 0]))
    assert engine.trust.level is Level.EXACT
    await engine.look()
    assert engine.trust.level is Level.DEGRADED
    assert "0.5.6.post2" in engine.trust.reason


@pytest.mark.parametrize(
    "name", [
        "swa_token_usage", "swa_available_tokens", "swa_evictable_tokens",
        "mamba_usage", "mamba_available_tokens", "mamba_evictable_tokens",
    ],
)  # fmt: skip
async def test_an_sglang_that_has_a_cache_beside_the_full_one_is_not_exact(
    engine: Engine, name: str
) -> None:
    engine.pod.engine = "sglang"
    engine.rank.live("", 0, msgspec.msgpack.encode([0.0, [["AllBlocksCleared"]], 0]))
    levels = []
    for usage in (b"0.0", b"0", b"0.25", b"0.0"):
        engine.metrics = b'sglang:%s{model_name="m"} %s\n' % (name.encode(), usage)
        await engine.look()
        levels.append(engine.trust.level)
    # What was seen once holds for as long as the engine lives.
    assert levels == [Level.EXACT, Level.EXACT, Level.DEGRADED, Level.DEGRADED]
    assert "its events omit them" in engine.trust.reason


async def test_a_worker_that_restarts_while_its_sockets_stay_up_is_found_out(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    # No process lives for less than ten milliseconds, but this simulated engine may.
    monkeypatch.setattr("warmpath.router.pods.probe.LATER_SECONDS", 0.0)
    clock = asyncio.get_running_loop().time
    rank = new_ingest(MemoryIndex, stale_after=60.0, clock=clock).add(source(topic="kv"))
    async with LocalWorker() as worker:
        subscriber = Subscriber(
            rank, worker.context, events=worker.ready["events"], replay=worker.ready["replay"],
            patience=Patience(replay_seconds=10.0, reconnect_seconds=0.01, max_frame_bytes=1 << 20),
        )  # fmt: skip
        following = asyncio.create_task(subscriber.run())
        try:
            pod = Pod("p", worker.ready["address"], "m", (rank,))
            engine = Engine(pod)
            await engine.look()
            await worker.generate()
            # A batch that came only after the restart would count as the new process's.
            last = len(await worker.replayed()) - 1
            await until(lambda: (rank.sequence, rank.trust.level) == (last, Level.EXACT))
            assert rank.blocks().get(Tier.GPU)
            await engine.look()
            await worker.post("/faults", {"restart": True})
            assert rank.trust.level is Level.EXACT, "nothing in its events tells"
            await engine.look()
            assert "pod p: restarted" in caplog.text
            assert engine.ended == ["p"], "what was sent to it is gone"
            await until(lambda: rank.stream.counts.restarts and rank.trust.level is Level.EXACT)
            assert not rank.blocks().get(Tier.GPU)
            await engine.look(3)
            assert rank.stream.counts.restarts == 1
        finally:
            # Its sockets would keep the worker's context from ending.
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


@pytest.mark.parametrize("problem", ["refuses", "is not there"])
async def test_an_engine_that_was_away_and_does_not_say_when_it_began_is_doubted(
    engine: Engine, problem: str, held_port: int
) -> None:
    engine.rank.live("", *EngineModel().store((0, 1)))
    await engine.look(2)
    address = engine.pod.address
    if problem == "refuses":
        engine.health = 503
    else:
        engine.pod.address = f"127.0.0.1:{held_port}"
    await engine.look()
    engine.pod.address, engine.health = address, 200
    assert engine.trust.level is Level.EXACT
    await engine.look()
    assert engine.trust.level is Level.DEGRADED
    assert engine.trust.reason.startswith("restarted: the engine accepted no requests and accepts")


async def test_an_engine_that_was_away_and_began_no_later_is_not_doubted(engine: Engine) -> None:
    engine.rank.live("", *EngineModel().store((0, 1)))
    engine.metrics = b"process_start_time_seconds 100.5\n"
    await engine.look()
    for health in (503, 200, 500, 500, 200):
        engine.health = health
        await engine.look()
    assert engine.trust.level is Level.EXACT
    engine.models = b'{"data":[{"id":"other"}]}'
    await engine.look(LOOKS)
    assert engine.trust.level is Level.EXACT


async def test_an_engine_that_was_slow_or_never_well_is_not_doubted(engine: Engine) -> None:
    engine.rank.live("", *EngineModel().store((0, 1)))
    for health in (503, 200, 500, 500, 200):
        engine.health = health
        await engine.look()
    assert engine.trust.level is Level.EXACT, "its first life has told all"


async def test_an_engine_whose_events_have_told_of_its_new_life_is_not_doubted(
    engine: Engine,
) -> None:
    old, new = EngineModel(), EngineModel()
    engine.rank.live("", *old.store((0, 1)))
    engine.rank.live("", *old.store((1, 2)))
    await engine.look()
    engine.health = 503
    await engine.look()
    engine.rank.live("", *new.store((0, 3)))
    assert engine.rank.stream.counts.restarts == 1
    trust = engine.trust
    engine.health = 200
    await engine.look()
    assert engine.trust == trust


async def test_an_engine_that_serves_another_model_is_doubted_and_adapters_come_and_go(
    engine: Engine,
) -> None:
    engine.rank.live("", *EngineModel().store((0, 1)))
    for listed in (b'{"id":"m"},{"id":"a","parent":"m"}', b'{"id":"m"}', b'{"id":"m"},{"id":"b"}'):
        engine.models = b'{"data":[' + listed + b"]}"
        await engine.look(LOOKS)
        assert engine.trust.level is Level.EXACT
    engine.models = b'{"data":[{"id":"n"},{"id":"b"}]}'
    await engine.look(LOOKS)
    assert engine.trust.level is Level.DEGRADED
    assert engine.trust.reason.startswith("restarted: it no longer serves a model")


async def test_an_engine_that_restarts_is_doubted_at_once_where_nothing_can_be_replayed(
    engine: Engine,
) -> None:
    engine.rank.live("", *EngineModel().store((0, 1)))
    for started in (b"100.5", b"100.5", b"99", b"nonsense", b"NaN", b"inf"):
        engine.metrics = b"process_start_time_seconds " + started + b"\n"
        await engine.look()
        assert engine.trust.level is Level.EXACT, "one of several processes began before another"
    engine.metrics = b"process_start_time_seconds 160.5\n"
    await engine.look()
    assert engine.trust.level is Level.DEGRADED
    assert engine.trust.reason.startswith("restarted: the engine's process started 60.0 s after")


async def test_a_pod_cannot_have_other_hosts_asked(engine: Engine) -> None:
    other = engine.pod.address

    async def redirect(request: web.Request) -> web.Response:
        raise web.HTTPFound(f"http://{other}{request.path}")

    async with listening(redirect) as engine.pod.address:
        await engine.look()
    assert (engine.status.healthy, engine.status.reason) == (False, "/health answers 302")
    assert not engine.asked


SPECULATES = b"""# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 0.0
"""


def batch(**more: object) -> bytes:
    return msgspec.msgpack.encode([1.0, [stored([7], [1, 2], None, 2, **more)], 0])


async def test_an_engine_that_drafts_tokens_is_exact_only_where_its_events_tell_what_it_needs(
    engine: Engine,
) -> None:
    engine.rank.live("", 0, batch())
    await engine.look()
    assert engine.trust.level is Level.EXACT
    engine.metrics += SPECULATES
    await engine.look()
    assert engine.trust.level is Level.DEGRADED
    assert "lookahead_token_ids" in engine.trust.reason
    engine.metrics = b""  # no answer says that it has another drafter now
    await engine.look()
    assert engine.trust.level is Level.DEGRADED
    engine.pod.may_be_eagle = False
    await engine.look()
    assert engine.trust.level is Level.EXACT


async def test_an_engine_whose_events_tell_the_next_tokens_is_exact_with_a_drafter(
    engine: Engine,
) -> None:
    engine.metrics += SPECULATES
    engine.rank.live("", 0, batch(lookahead_token_ids=[[3]]))
    await engine.look()
    assert engine.trust.level is Level.EXACT


@pytest.mark.parametrize("is_seen_away", [True, False])
async def test_what_an_engine_showed_of_its_options_ends_with_its_life(
    engine: Engine, *, is_seen_away: bool
) -> None:
    engine.rank.live("", 0, batch())
    size = b'process_start_time_seconds %d\nvllm:cache_config_info{num_gpu_blocks="%d"} 1.0\n'
    engine.metrics = size % (100, 11) + SPECULATES
    await engine.look()
    assert "lookahead" in engine.trust.reason
    if is_seen_away:
        engine.health = 503
        await engine.look()
    engine.health, engine.metrics = 200, size % (200, 21)
    await engine.look()
    assert not engine.status.drafts
    assert "lookahead" not in engine.trust.reason
    assert engine.rank.capacity == 20
    await engine.look()
    assert engine.status.models


@pytest.mark.parametrize("size", [b"9" * 5000, b"0", b"1", b"-1"])
async def test_a_cache_of_a_size_that_no_cache_has_is_not_learnt(
    engine: Engine, size: bytes
) -> None:
    engine.metrics = b'vllm:cache_config_info{num_gpu_blocks="%s"} 1.0\n' % size
    await engine.look()
    assert engine.pod.ready
    assert engine.rank.capacity == 0


async def test_a_late_health_is_no_reason_while_events_arrive(engine: Engine) -> None:
    engine.late = {"/health"}
    await engine.look()
    assert engine.pod.ready, "nothing is known yet but that it is late"
    for sequence in range(5):
        engine.rank.live("", sequence, msgspec.msgpack.encode([0.0, [], None]))
        await engine.look(2)
        assert engine.pod.ready
    await engine.look(3)
    assert not engine.pod.ready
    assert engine.pod.is_only_late
    engine.rank.disconnected()
    assert not engine.pod.is_only_late


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
    engine: Engine, says: str | int | Callable[[web.Request], Awaitable[None]]
) -> None:
    engine.pod.has_events = False
    await engine.look()
    if isinstance(says, str):
        engine.late = {"/health"}
    elif isinstance(says, int):
        engine.health = says
    else:
        engine.cut = says
    for _ in range(8):
        engine.answered = engine.now
        await engine.look()
        assert (engine.pod.ready, engine.status.is_late) == (True, True)
        assert engine.status.models == ("m", "tuned")
    await engine.look(3)
    assert (engine.pod.ready, engine.pod.is_only_late) == (False, True), "no answer comes any more"
    assert not engine.ended
    engine.health, engine.cut, engine.late = 200, None, set()
    await engine.look()
    assert (engine.pod.ready, engine.status.is_late) == (True, False)
    assert engine.status.reason == "/health answers"


async def test_metrics_are_read_of_a_pod_whose_health_is_late(engine: Engine) -> None:
    engine.metrics = b"vllm:num_requests_running 3\nvllm:num_requests_waiting 1\n"
    engine.late = {"/health"}
    await engine.look()
    assert [one.requests for _, _, one in engine.seen] == [4]


@pytest.mark.parametrize("status", [500, 503])
async def test_a_pod_that_was_late_and_then_refuses_is_down_at_once(
    engine: Engine, status: int
) -> None:
    await engine.look()
    engine.late = {"/health"}
    engine.answered = math.inf
    await engine.look(2)
    assert engine.pod.ready
    engine.late, engine.health = set(), status
    await engine.look()
    assert not engine.pod.ready
    assert not engine.pod.is_only_late
    assert engine.status.refuses is (status == 503)
    engine.late = {"/health"}
    await engine.look()
    assert engine.pod.ready is (status != 503), (
        "one that drains answers still, and takes no more requests"
    )


async def test_an_engine_that_ends_while_it_is_late_has_ended(
    engine: Engine, held_port: int
) -> None:
    await engine.look()
    engine.late = {"/health"}
    await engine.look(4)
    assert (engine.pod.ready, engine.ended) == (False, [])
    engine.pod.address = f"127.0.0.1:{held_port}"
    await engine.look()
    assert (engine.pod.ready, engine.pod.is_only_late, engine.ended) == (False, False, ["p"])


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
    engine: Engine, states: tuple[int, int, int]
) -> None:
    engine.metrics = sleep_page(1, 0, 0)
    engine.rank.live("", *EngineModel().store((0, 1)))
    await engine.look()
    assert engine.pod.ready
    assert any(engine.rank.blocks().values())
    engine.metrics = sleep_page(*states)
    await engine.look(2)
    assert (engine.pod.ready, engine.status.refuses, engine.ended) == (False, True, ["p"])
    assert not any(engine.rank.blocks().values())
    assert "vllm:engine_sleep_state" in engine.status.reason
    engine.late = {"/metrics"}
    await engine.look()
    assert not engine.pod.ready, "nothing says that it is awake"
    engine.late, engine.metrics = set(), sleep_page(1, 0, 0)
    await engine.look()
    assert (engine.pod.ready, engine.status.refuses) == (True, False)
    assert not any(engine.rank.blocks().values())


async def test_an_engine_that_is_paused_is_not_ready_and_keeps_its_blocks(engine: Engine) -> None:
    engine.rank.live("", *EngineModel().store((0, 1)))
    for page, is_paused in ((sleep_page(0, 0, 0), False), (sleep_page(1, 0, 0), True)):
        engine.missing = set() if is_paused else {"/is_paused"}
        engine.metrics, engine.is_paused = page, is_paused
        await engine.look(LOOKS + 1)
        assert (engine.pod.ready, engine.status.refuses) == (False, False)
        engine.metrics, engine.is_paused = sleep_page(1, 0, 0), False
        await engine.look()
        assert engine.pod.ready
    assert any(engine.rank.blocks().values())
