"""A publisher's listeners with TLS: who may watch it, certificates that change; and its engine's TLS."""

import asyncio
import ssl
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from tests.indexer.trtllm_answers import CREATED, answer
from tests.publisher.published_pod import FULL, IDS, Pod, asking, router_config
from tests.servers.certificates import Authority, Certificate
from tests.servers.http import serving
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.publisher.assemble import publishing
from warmpath.publisher.main import main
from warmpath.publisher.settings import Settings


def watching_with(shown: Certificate, authority: Path) -> str:
    return f'[watch]\nca = "{authority}"\ncert = "{shown.cert}"\nkey = "{shown.key}"\n'


async def test_with_tls_both_sides_must_show_who_they_are(pod: Pod, tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    shown = ours.certificate("publisher")
    await pod.publish(
        f"--tls-cert={shown.cert}", f"--tls-key={shown.key}", f"--tls-client-ca={ours.ca}"
    )
    await pod.generate(IDS)
    for authority, welcome in ((ours, True), (theirs, False)):
        table = watching_with(authority.certificate("router"), ours.ca)
        async with asking(table + router_config(pod), tmp_path) as asker:
            if welcome:
                await asker.until(lambda score: score.matched_tokens == FULL)
            else:
                await asker.until(lambda score: "UNAVAILABLE" in score.trust.reason)
    async with asking(router_config(pod), tmp_path) as asker:
        await asker.until(lambda score: "UNAVAILABLE" in score.trust.reason)


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
    flags = (f"--tls-cert={theirs.cert}", f"--tls-key={theirs.key}", f"--tls-client-ca={ca}")
    await pod.publish(*flags)
    await pod.generate(IDS)
    config = watching_with(mine, ca) + router_config(pod)
    async with asking(config, tmp_path) as asker:
        await asker.until(lambda score: score.matched_tokens == FULL)
        theirs.replace(new.certificate("theirs-2"))
        mine.replace(new.certificate("mine-2"))
        ca.write_bytes(new.ca.read_bytes())
        # A router that comes later is let in by the new authority alone.
        late = watching_with(new.certificate("late"), new.ca) + router_config(pod)
        async with asking(late, tmp_path) as other:
            await other.until(lambda score: score.matched_tokens == FULL)
        score = await asker.score()
        assert (score.matched_tokens, score.trust.level) == (FULL, pb.Trust.EXACT)
        assert "watch:" not in (tmp_path / "publisher.log").read_text()
        # The next connection of the router that was there before is made with the new files.
        await pod.publisher.stop()
        await asker.until(lambda score: score.trust.level == pb.Trust.STALE)
        await pod.publish(*flags)
        await asker.until(lambda score: score.matched_tokens == FULL)


@pytest.mark.deep
async def test_only_routers_with_an_allowed_name_may_watch(pod: Pod, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    theirs = authority.certificate("theirs")
    await pod.publish(
        f"--tls-cert={theirs.cert}", f"--tls-key={theirs.key}", f"--tls-client-ca={authority.ca}",
        "--tls-client-name=other", "--tls-client-name=router.example",
    )  # fmt: skip
    await pod.generate(IDS)
    for name, welcome in (("router.example", True), ("gateway.example", False)):
        shown = authority.certificate("caller", name)
        config = watching_with(shown, authority.ca) + router_config(pod)
        async with asking(config, tmp_path) as asker:
            if welcome:
                await asker.until(lambda score: score.matched_tokens == FULL)
            else:
                await asker.until(lambda score: "PERMISSION_DENIED" in score.trust.reason)


async def test_its_metrics_are_encrypted_too_and_for_those_with_a_certificate(
    pod: Pod, tmp_path: Path, held_port: int
) -> None:
    authority = Authority(tmp_path)
    theirs = authority.certificate("theirs")
    await pod.publish(
        f"--tls-cert={theirs.cert}", f"--tls-key={theirs.key}", f"--tls-client-ca={authority.ca}",
        f"--metrics-listen=127.0.0.1:{held_port}", "--tls-client-name=prometheus",
    )  # fmt: skip
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
    async with serving(theirs, engine, client_ca=str(ours.ca)) as address:
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
