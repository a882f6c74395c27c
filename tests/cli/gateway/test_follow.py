"""A gateway follows the pods of its router; the router's answers are scripted."""

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
import pytest

from warmpath.cli.gateway.command import follow
from warmpath.client.failure import CallError
from warmpath.process.listen import HostPort
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb

ONE, TWO, SIX = HostPort("10.0.0.1", 80), HostPort("10.0.0.2", 80), HostPort("fd00::1", 81)
AWAY = CallError(grpc.StatusCode.UNAVAILABLE, "away")


class Router:
    """Gives the answers in turn, then ends the test's task."""

    def __init__(self, answers: Sequence[Sequence[str] | CallError]) -> None:
        self._answers = iter(answers)

    async def pods(self) -> pb.ListPodsResponse:
        answer = next(self._answers, None)
        if answer is None:
            raise asyncio.CancelledError
        if isinstance(answer, CallError):
            raise answer
        pods = [pb.Pod(id=f"pod-{number}", address=one) for number, one in enumerate(answer)]
        return pb.ListPodsResponse(pods=pods)


async def followed(
    *answers: Sequence[str] | CallError, known: Sequence[HostPort] = (ONE,)
) -> tuple[list[Sequence[HostPort]], list[str]]:
    """Return what is put and what is logged."""
    put: list[Sequence[HostPort]] = []
    told: list[str] = []
    client: Any = Router(answers)
    with pytest.raises(asyncio.CancelledError):
        await follow(client, [*known], put.append, told.append, pause=0)
    return put, told


async def test_pods_that_come_and_go_are_put_once() -> None:
    one, both = ["10.0.0.1:80"], ["10.0.0.2:80", "10.0.0.1:80"]
    put, told = await followed(one, both, both, one, ["[fd00::1]:81"])
    assert put == [[ONE, TWO], [ONE], [SIX]]
    assert told[-1] == "pods: [fd00::1]:81"


async def test_a_router_that_is_away_or_lists_no_pod_changes_nothing() -> None:
    assert await followed(AWAY, [], AWAY, ["10.0.0.1:80"]) == ([], [])


async def test_a_pod_that_envoy_cannot_reach_is_told_once_and_left_out() -> None:
    listed = ["10.0.0.1:80", "pod-2.example:80"]
    put, told = await followed(listed, listed, [*listed, "10.0.0.2:80"])
    assert put == [[ONE, TWO]]
    problem = "the router's pod pod-1: pod-2.example:80 is not an IP address and a port"
    assert [one.startswith(problem) for one in told] == [True, False]
