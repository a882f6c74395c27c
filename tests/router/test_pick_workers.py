"""Picks over gRPC, of real workers: their events, their health, their metrics, and their deaths."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from tests.router.pick_stand import Stand, by_pod, ids, pod, prompt, standing
from tests.router.shared_stand import generate
from tests.servers.relay import Relay
from tests.waiting import until
from warmpath.cli import doctor
from warmpath.cli.asking import pods_main
from warmpath.cli.picks import decisions_main, explain_main
from warmpath.lab.local.cluster import Worker, WorkerSettings
from warmpath.lab.local.ports import HeldPorts
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb

SETTINGS = WorkerSettings(blocks=200, block_size=16, speed=1000.0, vocab_size=10_000)
PROBE = "[probe]\ninterval-seconds = 0.05\n[events]\nstale-seconds = 0.05\n"


@asynccontextmanager
async def working(folder: Path) -> AsyncIterator[list[Worker]]:
    """Run the workers a and b; nobody else answers where one was that is killed."""
    with HeldPorts() as ports:
        workers = [Worker.held(name, folder / f"{name}.log", ports) for name in "ab"]
        try:
            await asyncio.gather(*(worker.start(SETTINGS) for worker in workers))
            yield workers
        finally:
            await asyncio.gather(*(worker.process.stop() for worker in workers))


def tables(workers: Sequence[Worker], **events: str) -> str:
    """Return the pods' tables; `events` are endpoints other than the workers' own."""
    return "".join(
        pod(one.id, one.address, events=events.get(one.id, one.events), replay=one.replay)
        for one in workers
    )


@asynccontextmanager
async def following(folder: Path) -> AsyncIterator[tuple[list[Worker], Stand]]:
    """Run both workers, and a router that has followed them from the first event on."""
    async with working(folder) as workers, standing(folder, PROBE + tables(workers)) as stand:
        await until(lambda: all_exact(stand))
        yield workers, stand


async def all_exact(stand: Stand) -> bool:
    return all(
        pod.status == "/health answers" and pod.ranks[0].trust.level == pb.Trust.EXACT
        for pod in await stand.pods()
    )


async def holds(stand: Stand, name: str, blocks: int) -> bool:
    pods = {one.id: one for one in await stand.pods()}
    return sum(tier.blocks for tier in pods[name].ranks[0].tiers) >= blocks


async def known(stand: Stand, *names: str) -> bool:
    return sorted(one.id for one in await stand.pods()) == sorted(names)


async def offered(stand: Stand) -> dict[str, pb.Candidate]:
    return by_pod((await stand.explain(prompt())).candidates)


async def test_the_warm_pod_is_picked_and_named_as_the_source_where_it_is_not(
    tmp_path: Path,
) -> None:
    async with following(tmp_path) as (workers, stand):
        await generate(workers[0], ids(1600))
        await until(lambda: holds(stand, "a", 100))
        warm = await stand.pick(prompt(1600))
        best = warm.candidates[0]
        assert (best.pod, best.matched_tokens, best.believed_tokens) == ("a", 1584, 0)
        assert best.trust.level == pb.Trust.EXACT
        assert not warm.HasField("source")
        told = by_pod((await stand.explain(prompt(1600))).candidates)["a"].details
        assert [(tier.tier, tier.tokens) for tier in told.tiers] == [("gpu", 1584)]
        assert told.load_source == "engine"
        # Far more waits there than the prefill would take elsewhere.
        load = pb.PodLoad(pod="a", running=30, waiting=30, kv_usage=0.9)
        busy = await stand.pick(prompt(1600), loads=[load])
        assert busy.candidates[0].pod == "b"
        assert (busy.source.pod, busy.source.matched_tokens) == ("a", 1584)
        assert busy.source.address == workers[0].address
        cached = await generate(workers[0], ids(1600))
        assert cached == best.matched_tokens


@pytest.mark.deep
async def test_a_killed_worker_is_passed_over_and_when_it_leaves_nothing_is_kept_of_it(
    tmp_path: Path,
) -> None:
    listed = tmp_path / "pods.toml"
    # Top-level keys come before tables.
    models = "[probe]\ninterval-seconds = 0.05\n"
    async with working(tmp_path) as workers:
        listed.write_text(tables(workers))
        async with standing(tmp_path, models, top='pods-file = "pods.toml"') as stand:
            await until(lambda: known(stand, "a", "b"))
            await until(lambda: all_exact(stand))
            booked = await stand.pick(prompt(1600), pods=["a"], session_id="s")
            assert booked.candidates[0].pod == "a"
            workers[0].process.kill()
            while [*await offered(stand)] != ["b"]:
                await asyncio.sleep(0.01)
            for number in range(5):
                answer = await stand.pick(prompt(first=2000 + number), session_id="s")
                assert [one.pod for one in answer.candidates] == ["b"]
            listed.write_text(tables(workers[1:]))
            await until(lambda: known(stand, "b"))
            listed.write_text(tables(workers))
            await until(lambda: known(stand, "a", "b"))
            fresh = by_pod((await stand.explain(prompt(1600), pods=["a"])).candidates)["a"]
            assert fresh.matched_tokens == 0, "nothing is on its way there"
            assert fresh.details.in_flight == 0
            assert await stand.report(booked.booking_id, "STARTED", pod="b")
            assert await stand.report(booked.booking_id, "FINISHED")


@pytest.mark.deep
async def test_no_call_fails_while_a_pod_dies_and_its_score_falls_to_zero_and_recovers(
    tmp_path: Path,
) -> None:
    async with following(tmp_path) as (workers, stand):
        victim, other = workers
        calls = 0
        over = False

        async def score(pod: str) -> pb.PodScore:
            nonlocal calls
            request = pb.ScoreRequest(prompt=prompt(400), pods=[pod])
            response = await stand.stub.Score(request, timeout=5)
            calls += 1
            return response.scores[0]

        async def traffic() -> None:
            while not over:
                await stand.pick(prompt(400))
                await score(other.id)

        async def told() -> int:
            """Return what the victim's events say that it holds: picks may be on their way besides."""
            found = await score(victim.id)
            return found.matched_tokens - found.believed_tokens

        async def warm(worker: Worker) -> None:
            await generate(worker, ids(400))
            while await told() != 384:
                await asyncio.sleep(0.01)

        await generate(other, ids(400))
        await warm(victim)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(traffic())
            victim.process.kill()
            while (await score(victim.id)).score:
                await asyncio.sleep(0.01)
            assert (await stand.pick(prompt(400))).candidates[0].pod == other.id
            await victim.process.stop()
            await victim.start(SETTINGS)
            while (await score(victim.id)).trust.level != pb.Trust.EXACT:
                await asyncio.sleep(0.01)
            assert await told() == 0, "its cache is empty"
            await warm(victim)
            # Events may come before the next probe does.
            while not (await score(victim.id)).ready:
                await asyncio.sleep(0.01)
            over = True
        assert calls > 10
        assert (await score(other.id)).matched_tokens == 384


async def test_a_pod_whose_events_are_cut_goes_on_with_part_of_what_it_held(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        workers = await stack.enter_async_context(working(tmp_path))
        relay = stack.enter_context(Relay(int(workers[0].events.rpartition(":")[2])))
        pods = tables(workers, a=f"tcp://127.0.0.1:{relay.port}")
        stand = await stack.enter_async_context(standing(tmp_path, PROBE + pods))
        await until(lambda: all_exact(stand))
        await generate(workers[0], ids(1600))
        await until(lambda: holds(stand, "a", 100))
        relay.refuse()
        relay.cut()
        while "a" not in (seen := await offered(stand)) or seen["a"].trust.level != pb.Trust.STALE:
            await asyncio.sleep(0.01)
        told = by_pod((await stand.explain(prompt(1600))).candidates)["a"]
        assert told.trust.level == pb.Trust.STALE
        assert told.details.counted_tokens == 1584 // 2
        answer = await stand.pick(prompt(1600))
        assert answer.candidates[0].pod == "a", "half of it is more than nothing"
        again = by_pod((await stand.explain(prompt(1600))).candidates)["a"].details
        assert again.assumed_tokens == 1584, "and what is sent there is remembered"


async def test_the_commands_tell_of_a_running_router(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with following(tmp_path) as (workers, stand):
        answer = await stand.pick(prompt(1600), pods=["a"])
        cached = await generate(workers[0], ids(1600))
        await stand.report(answer.booking_id, "FIRST_TOKEN")
        await stand.report(answer.booking_id, "FINISHED", cached_tokens=cached, prompt_tokens=1600)
        await until(lambda: holds(stand, "a", 100))
        while {one.details.load_source for one in (await offered(stand)).values()} != {"engine"}:
            await asyncio.sleep(0.01)
        path = tmp_path / "ids.txt"
        path.write_text(" ".join(map(str, ids(1600))))
        at = ["--router", stand.address]
        explain = [*at, "--model", "demo", "--token-ids-file", str(path)]
        assert await asyncio.to_thread(explain_main, explain) == 0
        shown = capsys.readouterr().out
        assert "1,600 tokens, policy warmpath" in shown
        assert "a has 1,584 of 1,600 tokens cached" in shown
        assert await asyncio.to_thread(decisions_main, at) == 0
        shown = capsys.readouterr().out
        assert "a is the only candidate; it has none of 1,600 tokens" in shown
        assert "finished" in shown
        assert await asyncio.to_thread(doctor.main, at) == 0
        shown = capsys.readouterr().out
        assert "Nothing looks wrong. Pods: 2" in shown
        assert await asyncio.to_thread(doctor.main, [*at, "--model", "x"]) == 1
        assert "the router knows no pod of it" in capsys.readouterr().out
        assert await asyncio.to_thread(pods_main, [*at, "--model", "x", "--json"]) == 1
        shown = capsys.readouterr()
        assert shown.out == '{"pods": []}\n'
        assert shown.err == "warmpath: x: the router knows no pod of it\n"
        assert await asyncio.to_thread(pods_main, [*at, "--model", "x"]) == 1
        assert capsys.readouterr().out == ""
        assert await asyncio.to_thread(pods_main, [*at, "--model", "demo"]) == 0
    assert await asyncio.to_thread(doctor.main, at) == 3
