"""A gateway's pods are those that its router knows, as they come and go."""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from warmpath.cli.gateway.description import AddressError, HostPort, ip_address_of
from warmpath.client.async_client import AsyncClient
from warmpath.client.failure import CallError
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb

LOOK_SECONDS = 1.0
NO_MODEL = "MODEL"
"""Stands for a model's name in an example where none is known."""


class ListedPods(NamedTuple):
    """The pods that a router lists."""

    addresses: list[HostPort]
    """Of those that Envoy can reach, in order."""
    problems: list[str]
    """What is wrong with the others."""
    model: str = NO_MODEL
    """One of their models, for an example."""


def listed(reply: pb.ListPodsResponse) -> ListedPods:
    """Return the pods of a router's answer."""
    addresses, problems = set(), []
    for one in reply.pods:
        try:
            addresses.add(ip_address_of(one.address))
        except AddressError as error:
            problems.append(f"the router's pod {one.id}: {error}")
    model = min((one.model for one in reply.pods if one.model), default=NO_MODEL)
    return ListedPods(sorted(addresses), problems, model)


async def follow(
    client: AsyncClient,
    pods: Sequence[HostPort],
    put: Callable[[Sequence[HostPort]], None],
    tell: Callable[[str], None],
    *,
    pause: float = LOOK_SECONDS,
) -> None:
    """Call `put` with the router's pods whenever they are others than `pods`, until cancelled.

    Where the router does not answer, or lists none, all stays as it is: it may just have started.
    """
    told: set[str] = set()
    while True:
        await asyncio.sleep(pause)
        try:
            found = listed(await client.pods())
        except CallError:
            continue
        for problem in found.problems:
            if problem not in told:
                tell(problem)
        told = set(found.problems)
        if found.addresses and found.addresses != pods:
            pods = found.addresses
            put(pods)
            tell(f"pods: {', '.join(map(str, pods))}")
