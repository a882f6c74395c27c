"""The publisher as it runs: beside a worker, watched by a router over gRPC, with and without TLS."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from indexer.keys.key import fingerprint
from indexer.keys.token import pack_tokens
from indexer.pb.warmpath.watch.v1 import cache_watch_pb2 as watch_pb
from indexer.pb.warmpath.watch.v1 import cache_watch_pb2_grpc
from publisher.__main__ import main
from router.assemble import Running, running
from router.commands.local.cluster import MODEL
from router.config.read import parse
from router.pb.warmpath.v1 import router_pb2 as pb
from router.pb.warmpath.v1 import router_pb2_grpc
from tests.publisher.published_pod import FULL, IDS, Pod


@pytest.fixture
async def pod(tmp_path: Path) -> AsyncIterator[Pod]:
    async with Pod(tmp_path) as pod:
        yield pod


def router_config(pod: Pod, more: str = "") -> str:
    return (
        '[server]\nlisten = "127.0.0.1:0"\nmetrics-listen = ""\n'
        f'[[models]]\nname = "{MODEL}"\n'
        f'[[pods]]\nid = "p"\nmodel = "{MODEL}"\naddress = "{pod.worker.address}"\n'
        f'watch = "{pod.address}"\n' + more
    )


class Asker:
    """A client of a router."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.stub = router_pb2_grpc.RouterStub(channel)

    async def score(self) -> pb.PodScore:
        prompt = pb.Prompt(model=MODEL, token_ids_packed=pack_tokens(IDS))
        response = await self.stub.Score(pb.ScoreRequest(prompt=prompt), timeout=5)
        return response.scores[0]

    async def until(self, ready: Callable[[pb.PodScore], bool]) -> pb.PodScore:
        while not ready(score := await self.score()):
            await asyncio.sleep(0.01)
        return score


async def asking(stack: AsyncExitStack, config: str, folder: Path) -> tuple[Running, Asker]:
    router = await stack.enter_async_context(running(parse(config, "test"), folder))
    channel = await stack.enter_async_context(grpc.aio.insecure_channel(router.address))
    return router, Asker(channel)


async def test_a_router_that_joins_late_knows_the_whole_cache_at_once(
    pod: Pod, tmp_path: Path
) -> None:
    await pod.publish()
    await pod.generate(IDS)
    async with AsyncExitStack() as stack:
        _, asker = await asking(stack, router_config(pod), tmp_path)
        score = await asker.until(lambda score: score.matched_tokens == FULL)
        assert score.trust.level == pb.Trust.EXACT
        assert await pod.generate(IDS) == FULL


async def test_it_follows_what_comes_after_and_a_publisher_that_restarts(
    pod: Pod, tmp_path: Path
) -> None:
    await pod.publish()
    async with AsyncExitStack() as stack:
        _, asker = await asking(stack, router_config(pod), tmp_path)
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
    async with AsyncExitStack() as stack:
        _, asker = await asking(stack, router_config(pod), tmp_path)
        score = await asker.until(lambda score: "keyspace" in score.trust.reason)
        assert score.trust.level == pb.Trust.COLD


async def test_a_publisher_of_another_pod_is_refused_with_a_reason(
    pod: Pod, tmp_path: Path
) -> None:
    await pod.publish("--pod=another")
    await pod.generate(IDS)
    async with AsyncExitStack() as stack:
        _, asker = await asking(stack, router_config(pod), tmp_path)
        score = await asker.until(lambda score: "is pod 'another'" in score.trust.reason)
        assert score.matched_tokens == 0


async def test_a_publisher_that_comes_back_with_another_seed_is_said_to_be_refused(
    pod: Pod, tmp_path: Path
) -> None:
    await pod.publish()
    await pod.generate(IDS)
    async with AsyncExitStack() as stack:
        _, asker = await asking(stack, router_config(pod), tmp_path)
        await asker.until(lambda score: score.matched_tokens == FULL)
        await pod.publisher.stop()
        await pod.publish("--hash-seed=other")
        score = await asker.until(lambda score: "keyspace" in score.trust.reason)
        assert score.trust.level == pb.Trust.STALE


async def test_another_number_of_ranks_is_refused_with_a_reason(pod: Pod, tmp_path: Path) -> None:
    await pod.publish()
    async with AsyncExitStack() as stack:
        _, asker = await asking(stack, router_config(pod, "ranks = 2\n"), tmp_path)
        await asker.until(lambda score: "follows 1 ranks" in score.trust.reason)


async def test_a_watcher_resumes_from_its_position_without_a_snapshot(pod: Pod) -> None:
    await pod.publish()
    await pod.generate(IDS)
    async with grpc.aio.insecure_channel(pod.address) as channel:
        stub = cache_watch_pb2_grpc.CacheWatchStub(channel)
        seed = fingerprint(MODEL, "")
        epoch, position = "", 0
        async for response in stub.Watch(watch_pb.WatchRequest(keyspace=seed)):  # type: ignore[attr-defined]
            if response.HasField("hello"):
                assert response.hello.snapshot
                epoch = response.hello.epoch
            if response.HasField("end"):
                position = response.end.sequence
                break
        await pod.generate(list(range(1000, 1100)))
        request = watch_pb.WatchRequest(keyspace=seed, epoch=epoch, sequence=position)
        sequences = []
        async for response in stub.Watch(request):  # type: ignore[attr-defined]
            if response.HasField("hello"):
                assert not response.hello.snapshot
            if response.HasField("delta"):
                sequences.append(response.delta.sequence)
                break
        assert sequences == [position + 1]


async def test_a_slow_watcher_is_cut_off_and_the_engine_goes_on(pod: Pod) -> None:
    await pod.publish("--journal-bytes=300")
    async with grpc.aio.insecure_channel(pod.address) as channel:
        stub = cache_watch_pb2_grpc.CacheWatchStub(channel)
        request = watch_pb.WatchRequest(keyspace=fingerprint(MODEL, ""))

        async def watch_while_it_is_busy() -> None:
            async for response in stub.Watch(request):  # type: ignore[attr-defined]
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
    async with grpc.aio.insecure_channel(pod.address) as channel:
        stub = cache_watch_pb2_grpc.CacheWatchStub(channel)
        request = watch_pb.WatchRequest(keyspace=fingerprint(MODEL, ""))
        first = stub.Watch(request)
        await first.read()  # type: ignore[attr-defined]
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await stub.Watch(request).read()  # type: ignore[attr-defined]
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


class Authority:
    """Signs certificates for loopback."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self.key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.cert = self._builder(subject, self.key, subject).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        ).sign(self.key, hashes.SHA256())  # fmt: skip
        self.ca = self._write("ca.pem", self.cert.public_bytes(serialization.Encoding.PEM))

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, issuer: x509.Name
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder().subject_name(subject).issuer_name(issuer)
            .public_key(key.public_key()).serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        )  # fmt: skip

    def _write(self, name: str, content: bytes) -> Path:
        path = self.folder / f"{self.name}-{name}"
        path.write_bytes(content)
        return path

    def issue(self, name: str) -> tuple[Path, Path]:
        """Return the files of a certificate for 127.0.0.1 and of its key."""
        import ipaddress

        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        cert = self._builder(subject, key, self.cert.subject).add_extension(
            names, critical=False
        ).sign(self.key, hashes.SHA256())  # fmt: skip
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )  # fmt: skip
        return (
            self._write(f"{name}.pem", cert.public_bytes(serialization.Encoding.PEM)),
            self._write(f"{name}.key", private),
        )


async def test_with_tls_both_sides_must_show_who_they_are(pod: Pod, tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    cert, key = ours.issue("publisher")
    await pod.publish(f"--tls-cert={cert}", f"--tls-key={key}", f"--tls-client-ca={ours.ca}")
    await pod.generate(IDS)
    for authority, welcome in ((ours, True), (theirs, False)):
        mine, secret = authority.issue("router")
        table = f'[watch]\nca = "{ours.ca}"\ncert = "{mine}"\nkey = "{secret}"\n'
        async with AsyncExitStack() as stack:
            _, asker = await asking(stack, table + router_config(pod), tmp_path)
            if welcome:
                await asker.until(lambda score: score.matched_tokens == FULL)
            else:
                await asker.until(lambda score: "UNAVAILABLE" in score.trust.reason)
    async with AsyncExitStack() as stack:
        _, asker = await asking(stack, router_config(pod), tmp_path)
        await asker.until(lambda score: "UNAVAILABLE" in score.trust.reason)


async def test_its_metrics_tell_watchers_journal_and_trust(
    pod: Pod, tmp_path: Path, held_port: int
) -> None:
    await pod.publish(f"--metrics-listen=127.0.0.1:{held_port}")
    await pod.generate(IDS)
    async with AsyncExitStack() as stack:
        _, asker = await asking(stack, router_config(pod), tmp_path)
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
    ("option", "named"),
    [
        ("--listen=nowhere", "--listen"),
        ("--metrics-listen=:x", "--metrics-listen"),
        ("--advertise=here", "--advertise: 'here' is not host:port"),
        ("--advertise=here:1", "--advertise: needs --redis"),
        ("--ranks=0", "--ranks"),
        ("--tls-cert=x", "--tls-cert and --tls-key"),
        ("--tls-client-ca=x", "--tls-client-ca"),
        ("--engine=other", "--engine"),
        ("--events=tcp://*:5557", "--events"),
        ("--replay=nowhere", "--replay"),
        ("--pod=", "--pod"),
        ("--max-watchers=0", "--max-watchers"),
        ("--ranks=100000", "--ranks"),
    ],
)
def test_bad_options_are_named(option: str, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["--pod=p", "--model=m", "--events=tcp://127.0.0.1:1", option])
    assert error.value.code == 2
    assert named in capsys.readouterr().err
