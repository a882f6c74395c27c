"""The health as it is asked and watched, without sockets."""

import asyncio

import pytest
from grpc_health.v1 import health_pb2 as pb

from warmpath.process.health import MOST_WATCHERS, HealthService, WatchersFullError

SERVING, NOT_SERVING = pb.HealthCheckResponse.SERVING, pb.HealthCheckResponse.NOT_SERVING


def question() -> bytes:
    return pb.HealthCheckRequest().SerializeToString()


def status(answer: bytes) -> int:
    return pb.HealthCheckResponse.FromString(answer).status


class Process:
    """A process that is fit or not."""

    def __init__(self) -> None:
        self.is_fit = False
        self.health = HealthService(dict.fromkeys(("", "a.Service"), lambda: self.is_fit))


def test_what_is_no_question_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        Process().health.check(b"\xff")


async def test_a_change_that_only_a_watcher_saw_is_followed_by_the_next_one() -> None:
    process = Process()
    process.is_fit = True
    watching = process.health.watch(question())
    assert status(await anext(watching)) == SERVING
    process.is_fit = False
    notifying = asyncio.create_task(process.health.keep_notifying())
    assert status(await anext(watching)) == NOT_SERVING
    await watching.aclose()
    notifying.cancel()


async def test_no_more_clients_watch_than_may_and_one_that_goes_makes_room() -> None:
    health = Process().health
    watching = [health.watch(question()) for _ in range(MOST_WATCHERS)]
    for one in watching:
        await anext(one)
    with pytest.raises(WatchersFullError, match=str(MOST_WATCHERS)):
        await anext(health.watch(question()))
    await watching.pop().aclose()
    another = health.watch(question())
    assert status(await anext(another)) == NOT_SERVING
    for one in (*watching, another):
        await one.aclose()
