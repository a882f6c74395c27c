"""The publisher as it runs: beside a worker, watched by a router over gRPC, with and without TLS."""

import asyncio
from pathlib import Path

import aiohttp
import grpc.aio
import pytest

from tests.publisher.published_pod import FULL, IDS, Pod, asking, router_config, watching
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.publisher.main import main


async def test_a_router_that_joins_late_knows_the_whole_cache_at_once(
    pod: Pod, tmp_path: Path
) -> None:
    await pod.publish()
    await pod.generate(IDS)
    async with asking(router_config(pod), tmp_path) as asker:
        await asker.until(
            lambda score: (score.matched_tokens, score.trust.level) == (FULL, pb.Trust.EXACT)
        )
        assert await pod.generate(IDS) == FULL


@pytest.mark.deep
async def test_it_follows_what_comes_after_and_a_publisher_that_restarts(
    pod: Pod, tmp_path: Path
) -> None:
    await pod.publish()
    async with asking(router_config(pod), tmp_path) as asker:
        await asker.until(lambda score: score.trust.level == pb.Trust.EXACT)
        await pod.generate(IDS)
        await asker.until(lambda score: score.matched_tokens == FULL)
        await pod.publisher.stop()
        gone = await asker.until(lambda score: score.trust.level == pb.Trust.STALE)
        assert gone.score == 0
        await pod.publish()
        await asker.until(lambda score: score.matched_tokens == FULL)


async def test_another_hash_seed_is_refused_with_a_reason(pod: Pod, tmp_path: Path) -> None:
    await pod.publish("--hash-seed=other")
    async with asking(router_config(pod), tmp_path) as asker:
        score = await asker.until(lambda score: "keyspace" in score.trust.reason)
        assert score.trust.level == pb.Trust.COLD


async def test_a_publisher_of_another_pod_is_refused_with_a_reason(
    pod: Pod, tmp_path: Path
) -> None:
    await pod.publish("--pod=another")
    await pod.generate(IDS)
    async with asking(router_config(pod), tmp_path) as asker:
        score = await asker.until(lambda score: "is pod 'another'" in score.trust.reason)
        assert score.matched_tokens == 0


@pytest.mark.deep
async def test_a_publisher_that_comes_back_with_another_seed_is_said_to_be_refused(
    pod: Pod, tmp_path: Path
) -> None:
    await pod.publish()
    await pod.generate(IDS)
    async with asking(router_config(pod), tmp_path) as asker:
        await asker.until(lambda score: score.matched_tokens == FULL)
        await pod.publisher.stop()
        await pod.publish("--hash-seed=other")
        score = await asker.until(lambda score: "keyspace" in score.trust.reason)
        assert score.trust.level == pb.Trust.STALE


async def test_another_number_of_ranks_is_refused_with_a_reason(pod: Pod, tmp_path: Path) -> None:
    await pod.publish()
    async with asking(router_config(pod, "ranks = 2\n"), tmp_path) as asker:
        await asker.until(lambda score: "follows 1 ranks" in score.trust.reason)


async def test_a_watcher_resumes_from_its_position_without_a_snapshot(pod: Pod) -> None:
    await pod.publish()
    await pod.generate(IDS)
    async with watching(pod) as watch:
        epoch, position = "", 0
        async for response in watch():
            if response.HasField("hello"):
                assert response.hello.snapshot
                epoch = response.hello.epoch
            if response.HasField("end"):
                position = response.end.sequence
                break
        await pod.generate(list(range(1000, 1100)))
        async for response in watch(epoch=epoch, sequence=position):
            if response.HasField("hello"):
                assert not response.hello.snapshot
            if response.HasField("delta"):
                assert response.delta.sequence == position + 1
                break


async def test_a_slow_watcher_is_cut_off_and_the_engine_goes_on(pod: Pod) -> None:
    await pod.publish("--journal-bytes=300")
    async with watching(pod) as watch:

        async def watch_while_it_is_busy() -> None:
            async for response in watch():
                if response.HasField("end"):
                    for start in range(0, 30_000, 2000):
                        await pod.generate(list(range(start, start + 1500)))

        # It is cut off as soon as a batch is larger than the whole journal.
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await watch_while_it_is_busy()
        assert error.value.code() is grpc.StatusCode.OUT_OF_RANGE
        assert await pod.generate(IDS) == 0


async def test_watchers_past_the_limit_are_refused(pod: Pod) -> None:
    await pod.publish("--max-watchers=1")
    async with watching(pod) as watch:
        first = watch()
        await first.read()
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await watch().read()
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        first.cancel()


async def test_what_is_no_request_is_refused_and_writes_no_traceback(
    pod: Pod, tmp_path: Path, held_port: int
) -> None:
    await pod.publish(f"--metrics-listen=127.0.0.1:{held_port}")
    async with grpc.aio.insecure_channel(pod.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await channel.unary_stream("/warmpath.watch.v1.CacheWatch/Watch")(b"\xff\xff").read()
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.value.details() == "request: not a WatchRequest"
    reader, writer = await asyncio.open_connection("127.0.0.1", held_port)
    writer.write(b"\0 no HTTP at all\r\n\r\n")
    assert b"400" in await reader.readline()
    writer.close()
    assert "Traceback" not in (tmp_path / "publisher.log").read_text()


async def test_its_metrics_tell_watchers_journal_and_trust(
    pod: Pod, tmp_path: Path, held_port: int
) -> None:
    await pod.publish(f"--metrics-listen=127.0.0.1:{held_port}")
    await pod.generate(IDS)
    async with asking(router_config(pod), tmp_path) as asker:
        await asker.until(lambda score: score.matched_tokens == FULL)
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"http://127.0.0.1:{held_port}/metrics") as response,
        ):
            text = await response.text()
    assert "warmpath_publisher_watchers 1.0" in text
    assert 'warmpath_publisher_rank_trust{level="exact",rank="0"} 1.0' in text
    assert "warmpath_publisher_snapshots_total 1.0" in text


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--listen=nowhere"], "--listen"),
        (["--metrics-listen=:x"], "--metrics-listen"),
        (["--advertise=here"], "--advertise: 'here' is not host:port"),
        (["--advertise=here:1"], "--advertise: needs --redis"),
        (["--ranks=0"], "--ranks"),
        (["--tls-cert=x"], "--tls-cert and --tls-key"),
        (["--tls-client-ca=x"], "--tls-client-ca"),
        (["--tls-client-name=x"], "--tls-client-name: needs --tls-client-ca"),
        (["--listen=0.0.0.0:7500"], "--listen: 0.0.0.0:7500 is reached by other machines: it needs --tls-cert and --tls-client-ca"),
        (["--metrics-listen=pod.example:1"], "--metrics-listen: pod.example:1 is reached by"),
        (["--engine=other"], "--engine"),
        (["--events=tcp://*:5557"], "--events"),
        (["--replay=nowhere"], "--replay"),
        (["--replay=tcp://127.0.0.1:1"], "--replay: port 1 is 0 above or below the events'"),
        (["--pod="], "--pod"),
        (["--max-watchers=0"], "--max-watchers"),
        (["--ranks=100000"], "--ranks"),
        (["--redis=redis://h:1", "--redis-prefix=a b"], "--redis-prefix"),
        (["--redis=redis://h:1", "--redis-lease-seconds=0.1"], "--redis-lease-seconds"),
        (["--redis-ca=x"], "--redis-ca: needs --redis"),
        (["--redis-prefix=x"], "--redis-prefix: needs --redis"),
        (["--redis-lease-seconds=5"], "--redis-lease-seconds: needs --redis"),
    ],
)  # fmt: skip
def test_bad_options_are_named(
    options: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        main(["--pod=p", "--model=m", "--events=tcp://127.0.0.1:1", *options])
    assert error.value.code == 2
    assert named in capsys.readouterr().err
