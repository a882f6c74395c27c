"""A router's choices of pods for recorded traffic, and the traffic's reports to it."""

from collections.abc import Sequence
from dataclasses import dataclass

from warmpath.client.async_client import AsyncClient
from warmpath.proto.report_event import ReportEvent


@dataclass(frozen=True, slots=True)
class PodChoice:
    """The chosen pod, its fall-backs, and the booking id for reports."""

    pods: tuple[int, ...]
    """Positions of pods, in the order to try them."""
    booking: str = ""


class Chooser:
    """The calls of a run of recorded traffic to whoever chooses pods; this one heeds no reports."""

    async def choose(self, packed: bytes) -> PodChoice:
        """Choose a pod for a prompt of packed token ids."""
        raise NotImplementedError

    async def fell_back(self, choice: PodChoice, pod: int) -> None:
        """Handle a request that another pod did not serve and that goes to the one at `pod`."""

    async def first_token(self, choice: PodChoice) -> None:
        """Handle the first token of a request."""

    async def finished(self, choice: PodChoice, cached: int | None) -> None:
        """Handle the end of a request; `cached` is None if it failed."""


class Router(Chooser):
    """Asks a router: Pick, then Report."""

    def __init__(self, client: AsyncClient, pods: Sequence[str]) -> None:
        self._client = client
        self._pods = pods
        self._positions = {pod: position for position, pod in enumerate(pods)}

    async def choose(self, packed: bytes) -> PodChoice:
        reply = await self._client.pick(packed)
        pods = tuple(self._positions[one.pod] for one in reply.candidates)
        return PodChoice(pods, reply.booking_id)

    async def fell_back(self, choice: PodChoice, pod: int) -> None:
        await self._client.report(choice.booking, "started", pod=self._pods[pod])

    async def first_token(self, choice: PodChoice) -> None:
        await self._client.report(choice.booking, "first_token")

    async def finished(self, choice: PodChoice, cached: int | None) -> None:
        event: ReportEvent = "failed" if cached is None else "finished"
        await self._client.report(choice.booking, event, cached_tokens=cached)
