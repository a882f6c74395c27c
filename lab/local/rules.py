"""The demo's policies: warmpath, and two rules that ignore caches."""

from collections.abc import Sequence
from dataclasses import dataclass

from warmpath.client.async_client import AsyncClient
from warmpath.proto.report_event import ReportEvent

ROUND_ROBIN, LEAST_LOAD, WARMPATH, QUEUED = NAMES = (
    "round-robin", "least-load", "warmpath", "warmpath-queued",
)  # fmt: skip
TITLES = {QUEUED: "warmpath, queued"}
"""Policy -> its name in results, where that differs."""


@dataclass(frozen=True, slots=True)
class PodChoice:
    """The chosen pod, its fall-backs, and the booking id for reports."""

    pods: tuple[int, ...]
    """Positions of pods, in the order to try them."""
    booking: str = ""
    waited: float = 0.0
    """Wall-clock seconds in the router's queue."""


class Policy:
    """The calls of a run of recorded traffic to a policy; this one learns nothing from requests."""

    async def choose(self, packed: bytes) -> PodChoice:
        """Choose a pod for a prompt of packed token ids."""
        raise NotImplementedError

    async def fell_back(self, choice: PodChoice, left: int, pod: int) -> None:
        """Handle a request that the pod at `left` did not serve and that goes to the one at `pod`."""

    async def first_token(self, choice: PodChoice) -> None:
        """Handle the first token of a request."""

    async def finished(self, choice: PodChoice, pod: int, cached: int | None) -> None:
        """Handle the end of a request at the pod at `pod`; `cached` is None if it failed."""


class RoundRobin(Policy):
    """Chooses the pods in round robin."""

    def __init__(self, pods: int) -> None:
        self._pods = pods
        self._next = 0

    async def choose(self, packed: bytes) -> PodChoice:
        """Choose the next pod; those after it are its fall-backs."""
        del packed
        first, self._next = self._next, (self._next + 1) % self._pods
        return PodChoice(tuple((first + step) % self._pods for step in range(self._pods)))


class LeastLoad(Policy):
    """Chooses the pod with the fewest requests in flight; among equals the one chosen longest ago."""

    def __init__(self, pods: int) -> None:
        self._in_flight = [0] * pods
        self._chosen = [0] * pods
        self._turn = 0

    async def choose(self, packed: bytes) -> PodChoice:
        """Choose the least loaded pod; its fall-backs are the others, the least loaded first."""
        del packed
        pods = range(len(self._in_flight))
        ranked = sorted(pods, key=lambda one: (self._in_flight[one], self._chosen[one]))
        self._turn += 1
        self._in_flight[ranked[0]] += 1
        self._chosen[ranked[0]] = self._turn
        return PodChoice(tuple(ranked))

    async def fell_back(self, choice: PodChoice, left: int, pod: int) -> None:
        del choice
        self._in_flight[left] -= 1
        self._in_flight[pod] += 1

    async def finished(self, choice: PodChoice, pod: int, cached: int | None) -> None:
        del choice, cached
        self._in_flight[pod] -= 1


class Warmpath(Policy):
    """Asks a router: Pick, then Report."""

    def __init__(self, client: AsyncClient, pods: Sequence[str]) -> None:
        self._client = client
        self._pods = pods
        self._positions = {pod: position for position, pod in enumerate(pods)}

    async def choose(self, packed: bytes) -> PodChoice:
        reply = await self._client.pick(packed)
        pods = tuple(self._positions[one.pod] for one in reply.candidates)
        return PodChoice(pods, reply.booking_id, reply.waited_seconds)

    async def fell_back(self, choice: PodChoice, left: int, pod: int) -> None:
        del left
        await self._client.report(choice.booking, "started", pod=self._pods[pod])

    async def first_token(self, choice: PodChoice) -> None:
        await self._client.report(choice.booking, "first_token")

    async def finished(self, choice: PodChoice, pod: int, cached: int | None) -> None:
        del pod
        event: ReportEvent = "failed" if cached is None else "finished"
        await self._client.report(choice.booking, event, cached_tokens=cached)
