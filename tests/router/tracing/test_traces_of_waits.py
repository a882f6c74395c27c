"""A pick that waits in the queue shows its wait in its own trace, not in that of the call that ends it."""

import asyncio
from pathlib import Path

from tests.router.pick_stand import QUIET, pod, prompt, standing, until
from tests.router.tracing.recorded_spans import Recorded
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.queue.lag import LEAST

QUEUE = f'{QUIET}[pick]\nqueue = "on"\nprefill-base-seconds = 60\n{pod("a")}'
PICK = "warmpath.v1.Router/Pick"


async def test_the_wait_in_the_queue_is_a_span_of_the_pick(tmp_path: Path) -> None:
    recorded = Recorded()
    async with standing(tmp_path, QUEUE, tracer=recorded.tracer) as stand:
        for _ in range(LEAST):
            one = await stand.pick(prompt(first=1), wait=True)
            assert await stand.report(one.booking_id, "FIRST_TOKEN")
            assert await stand.report(one.booking_id, "FAILED")
        before = await stand.pick(prompt(first=2))
        held = asyncio.ensure_future(stand.pick(prompt(first=3)))

        async def waits() -> bool:
            return any(one.state == pb.Decision.WAITING for one in await stand.decisions())

        await until(waits)
        assert await stand.report(before.booking_id, "FIRST_TOKEN")
        waited = await held
    spans = recorded.exporter.get_finished_spans()
    [queue] = [span for span in spans if span.name == "queue"]
    [pick] = [span for span in spans if span.context.span_id == queue.parent.span_id]
    assert (pick.name, pick.attributes["warmpath.booking_id"]) == (PICK, waited.booking_id)
    assert pick.attributes["warmpath.waited_seconds"] == waited.waited_seconds
    # Nor do releases, which weigh all that wait, appear in the traces of reports.
    reports = {span.context.span_id for span in spans if span.name.endswith("/Report")}
    assert not [span for span in spans if span.parent and span.parent.span_id in reports]
