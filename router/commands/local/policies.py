"""The demo's policies: warmpath, and two rules that ignore caches."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from router.client.async_client import AsyncClient
from router.report_event import ReportEvent


@dataclass(frozen=True, slots=True)
class PodChoice:
    """The chosen pod's position, and the booking id for reports."""

    pod: int
    booking: str = ""


class Policy(Protocol):
    """What a run of recorded traffic asks of a policy."""

    async def choose(self, packed: bytes) -> PodChoice:
        """Choose a pod for a prompt of packed token ids."""

    async def first_token(self, choice: PodChoice) -> None:
        """Handle the first token of a request."""

    async def finished(self, choice: PodChoice, cached: int | None) -> None:
        """Handle the end of a request; `cached` is None if it failed."""


class RoundRobin:
    """Chooses the pods in turn."""

    def __init__(self, pods: int) -> None:
        self._pods = pods
        self._next = 0

    async def choose(self, packed: bytes) -> PodChoice:
        """Choose the next pod."""
        del packed
        pod, self._next = self._next, (self._next + 1) % self._pods
        return PodChoice(pod)

    async def first_token(self, choice: PodChoice) -> None:
        """Do nothing: this policy learns nothing from requests."""

    async def finished(self, choice: PodChoice, cached: int | None) -> None:
        """Do nothing: this policy learns nothing from requests."""


class LeastLoad:
    """Chooses the pod with the fewest requests in flight; among equals the one chosen longest ago."""

    def __init__(self, pods: int) -> None:
        self._in_flight = [0] * pods
        self._chosen = [0] * pods
        self._turn = 0

    async def choose(self, packed: bytes) -> PodChoice:
        """Choose the least loaded pod."""
        del packed
        pods = range(len(self._in_flight))
        pod = min(pods, key=lambda one: (self._in_flight[one], self._chosen[one]))
        self._turn += 1
        self._in_flight[pod] += 1
        self._chosen[pod] = self._turn
        return PodChoice(pod)

    async def first_token(self, choice: PodChoice) -> None:
        """Do nothing: this policy learns nothing from requests."""

    async def finished(self, choice: PodChoice, cached: int | None) -> None:
        """Count one request less on its pod."""
        del cached
        self._in_flight[choice.pod] -= 1


class Warmpath:
    """Asks a router: Pick, then Report."""

    def __init__(self, client: AsyncClient, pods: Sequence[str]) -> None:
        self._client = client
        self._positions = {pod: position for position, pod in enumerate(pods)}

    async def choose(self, packed: bytes) -> PodChoice:
        """Call Pick."""
        reply = await self._client.pick(packed)
        return PodChoice(self._positions[reply.candidates[0].pod], reply.booking_id)

    async def first_token(self, choice: PodChoice) -> None:
        """Report the request's first token to the router."""
        await self._client.report(choice.booking, "first_token")

    async def finished(self, choice: PodChoice, cached: int | None) -> None:
        """Report the request's end to the router; `cached` is None if it failed."""
        event: ReportEvent = "failed" if cached is None else "finished"
        await self._client.report(choice.booking, event, cached_tokens=cached)
