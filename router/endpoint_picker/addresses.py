"""Endpoints as gateways write them: IP:PORT, with IPv6 in brackets.

Also names the kind of engine behind a model, since engines read some APIs in their own ways.
"""

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address

from warmpath.router.pods.table import Pod, PodTable
from warmpath.router.prompt.models import ModelTable, UnknownModelError


@lru_cache(4096)
def endpoint(address: str) -> str:
    """Return an address in the one form that equal endpoints share; a host's name stays as it is."""
    text = address.strip()
    host, _, port = text.rpartition(":")
    is_bare = ":" in host and not host.startswith("[")
    if not host or is_bare or not port.isdecimal():
        host, port = text, ""
    try:
        ip = ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return text
    shown = f"[{ip}]" if ip.version == 6 else str(ip)
    return f"{shown}:{port}" if port else shown


def pods_at(pods: Iterable[Pod], subset: frozenset[str]) -> list[str]:
    """Return the ids of the pods at these endpoints; an endpoint without a port means all its ports."""
    wanted = {endpoint(one) for one in subset}
    found = []
    for pod in pods:
        address = endpoint(pod.address)
        if address in wanted or address.rpartition(":")[0] in wanted:
            found.append(pod.id)
    return found


def engine_of(models: ModelTable, pods: PodTable, name: str) -> str:
    """Return the kind of engine that serves a model; empty if no engine or several kinds serve it.

    `name` is any name of the model; where no model has it, all pods count.
    """
    try:
        model, _ = models.resolve(name)
    except UnknownModelError:
        kinds = {pod.engine for pod in pods}
    else:
        kinds = {pod.engine for pod in pods.of_model(model.name)}
    return kinds.pop() if len(kinds) == 1 else ""


def only_model(pods: PodTable) -> str:
    """Return the model that all pods serve; empty if they serve several."""
    models = {pod.model for pod in pods}
    return models.pop() if len(models) == 1 else ""
