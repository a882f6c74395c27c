"""The time of a pick in process: beside a Score, of a chat, and in a very large fleet."""

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from warmpath.lab.bench.figure import Figure
from warmpath.lab.bench.speed.tokenize import NEW_BYTES, library_text, new_tokenizer
from warmpath.lab.bench.stand.asked import PROMPTS, Asked
from warmpath.lab.bench.stand.look_up import TOKENS, no_collector
from warmpath.lab.bench.stand.made_up_fleet import MODEL
from warmpath.lab.local.tokenizer import TEMPLATE
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.calls.pick import PickAnswerer
from warmpath.router.config.files import engine_credentials
from warmpath.router.config.schema import Config, ModelSpec
from warmpath.router.diagnosis.decisions import wall_offset_of
from warmpath.router.pick.report import Report
from warmpath.router.prompt.limits import PromptLimits
from warmpath.router.prompt.reader import PromptReader
from warmpath.router.prompt.texts import texts

IN_FLIGHT = 8
"""Picks of a pod that have not ended."""
MANY_PODS = 2000
CHAT_PODS = 4


def measure(*, quick: bool) -> list[Figure]:
    """Measure picks in a small fleet and in a larger one, of chats, and in a very large fleet."""
    figures = [figure for pods in (8, 64) for figure in _cost(pods, quick=quick)]
    with tempfile.TemporaryDirectory(prefix="warmpath-") as folder:
        figures.append(asyncio.run(_of_new_chats(Path(folder), quick=quick)))
    return [*figures, _of_many(quick=quick)]


def _cost(pods: int, *, quick: bool) -> Iterator[Figure]:
    """Measure the processor time of a pick with its reports and of Score of the same prompt, in turn."""
    rounds = 300 if quick else 2000
    asked = Asked(pods)
    for call in range(PROMPTS + pods * IN_FLIGHT):
        asked.pick(call)
    taken: dict[str, list[float]] = {"Pick": [], "with reports": [], "Score": []}
    with no_collector():
        for call in range(rounds):
            begun = time.process_time()
            asked.score(call)
            scored = time.process_time()
            asked.pick(call)
            picked = time.process_time()
            asked.report()
            ended = time.process_time()
            for name, seconds in (
                ("Score", scored - begun),
                ("Pick", picked - scored),
                ("with reports", ended - scored),
            ):
                taken[name].append(seconds * 1e6)
    p50 = {name: statistics.median(times) for name, times in taken.items()}
    for name, what in (("Pick", "Pick"), ("with reports", "Pick and its three reports")):
        yield Figure(
            f"{what} in process, {TOKENS:,} ids, {pods} pods: p50",
            p50[name], "us", p50["Score"], "Score of the same prompt",
        )  # fmt: skip


async def _of_new_chats(folder: Path, *, quick: bool) -> Figure:
    """Measure the processor time of a pick with its reports, from the body of a chat on.

    Chats whose second half is new take turns with one that is known.
    """
    new_tokenizer().save(str(folder / "tokenizer.json"))
    settings = json.dumps({"chat_template": TEMPLATE})
    (folder / "tokenizer_config.json").write_text(settings, encoding="utf-8")
    config = Config(models=[ModelSpec(name=MODEL, tokenizer=str(folder))])
    asked, library = Asked(CHAT_PODS, prompts=0), library_text()
    async with texts(config, folder, engine_credentials(config.probe, folder)) as read:
        picks = PickAnswerer(
            PromptReader(read, PromptLimits(1 << 20, 1 << 20)), asked.pods, asked.ingest, asked.picking,
            decisions=asked.decisions, attribution=asked.attribution, clock=time.monotonic,
            wall_offset=wall_offset_of(),
        )  # fmt: skip

        async def seconds(at: int) -> float:
            """Return the time for the chat whose second half is at a place of the library."""
            halves = library[:NEW_BYTES], library[at : at + NEW_BYTES]
            turns = [{"role": "user", "content": half} for half in halves]
            body = json.dumps({"model": MODEL, "messages": turns}).encode()
            request = pb.PickRequest(prompt=pb.Prompt(model=MODEL, chat_body=body))
            begun = time.process_time()
            pick = await picks.pick(request, 10.0)
            with picks.telling(pick):
                picks.response(pick)
            for report in (
                Report(pick.booking_id, "started"),
                Report(pick.booking_id, "first_token"),
                Report(
                    pick.booking_id, "finished", cached_tokens=0, prompt_tokens=pick.prompt_tokens
                ),
            ):
                assert picks.reports.take(report)
            return time.process_time() - begun

        await seconds(NEW_BYTES)
        with no_collector():
            places = range(2 * NEW_BYTES, (100 if quick else 1000) * NEW_BYTES, NEW_BYTES)
            taken = [(await seconds(at), await seconds(NEW_BYTES)) for at in places]
    new, known = (statistics.median(times) * 1e6 for times in zip(*taken, strict=True))
    name = f"Pick and its three reports in process, a chat of 4 KB, half new, {CHAT_PODS} pods: p50"
    return Figure(name, new, "us", known, "the same, all of it known", goal=1.25)


def _of_many(*, quick: bool) -> Figure:
    """Measure the processor time of a pick among very many pods, from the eligible pods to the answer.

    The load of each pod's engine is known.
    """
    asked = Asked(MANY_PODS, prompts=20)
    asked.load()
    p50 = asked.answer_seconds(20 if quick else 200) * 1e3
    name = f"Pick in process with its answer, {TOKENS:,} ids, {MANY_PODS:,} pods: p50"
    return Figure(name, p50, "ms", 1.0, "1 ms", goal=10.0)
