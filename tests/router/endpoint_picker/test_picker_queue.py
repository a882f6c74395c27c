"""Exchanges of a gateway in the queue: they wait with their class, and leave it when they end."""

from pathlib import Path

import pytest

from tests.router.endpoint_picker.gateway import Conversation, Gateway, asking, completion
from tests.router.pick_stand import QUIET, pod, prompt
from tests.waiting import until
from warmpath.proto.pb.warmpath.v1 import router_pb2
from warmpath.router.queue.lag import LEAST

QUEUE = f"""{QUIET}[pick]
queue = "on"
prefill-base-seconds = 60
[queue]
objectives = {{ urgent = "high", batch = "low" }}
{pod("pod-1", "127.0.0.1:8101")}"""


STREAMED = (
    b'data: {"choices": [{"index": 0, "text": "a"}]}\n\n',
    b'data: {"choices": [{"index": 0, "text": "b", "finish_reason": "stop"}]}\n\n',
    b"data: [DONE]\n\n",
)


async def fill(gateway: Gateway) -> Conversation:
    """Give the only pod a prefill; before that, show that first tokens are reported."""
    events = router_pb2.ReportRequest
    for _ in range(LEAST):
        picked = await gateway.stub.Pick(router_pb2.PickRequest(prompt=prompt()), timeout=30)
        # Not FINISHED, which would show that prefills are fast.
        for event in (events.FIRST_TOKEN, events.FAILED):
            report = events(booking_id=picked.booking_id, event=event)
            await gateway.stub.Report(report, timeout=30)
    before = gateway.exchange()
    await before.routed(completion())
    return before


async def wait_for(gateway: Gateway, priority: str, number: int) -> None:
    async def holds() -> bool:
        series = f'warmpath_queue_waiting{{class="{priority}"}}'
        return await gateway.metric(series) == number

    await until(holds)


@pytest.mark.parametrize(
    "named",
    [
        [("x-warmpath-priority", "high"), ("x-llm-d-inference-objective", "batch")],
        [("x-gateway-inference-objective", "batch"), ("x-llm-d-inference-objective", "urgent")],
        [("x-gateway-inference-objective", "urgent")],
    ],
    ids=["by itself", "by an objective", "by the older header"],
)
async def test_an_exchange_waits_with_its_class_until_the_answer_of_another_one(
    tmp_path: Path, transport: str, named: list[tuple[str, str]]
) -> None:
    async with asking(tmp_path, tables=QUEUE, transport=transport) as gateway:
        before = await fill(gateway)
        held = gateway.exchange()
        await held.request(*named, ("x-llm-d-inference-fairness-id", "t"))
        await held.body(completion())
        await wait_for(gateway, "high", 1)
        unknown = gateway.exchange()
        kind = named[-1][0]
        await unknown.request((kind, "huge"))
        await unknown.body(completion())
        await wait_for(gateway, "normal", 1)
        await before.answered(*STREAMED, kind="text/event-stream")
        destination = await held.destination()
        assert destination.endpoints == ["127.0.0.1:8101"]
        await wait_for(gateway, "high", 0)
        await wait_for(gateway, "normal", 1)
        unknown.call.cancel()
        await wait_for(gateway, "normal", 0)


@pytest.mark.deep
async def test_an_exchange_goes_before_its_time_for_a_pick_is_over(
    tmp_path: Path, transport: str
) -> None:
    picker = "pick-seconds = 4"
    async with asking(tmp_path, picker=picker, tables=QUEUE, transport=transport) as gateway:
        await fill(gateway)
        held = gateway.exchange()
        assert (await held.routed(completion())).endpoints == ["127.0.0.1:8101"]
        newest = await gateway.newest()
        assert newest.waited_seconds > 1
        assert "in the queue." in newest.reason
