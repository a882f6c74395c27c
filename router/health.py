"""The router's health by component, as both listeners (gRPC and HTTP) report it."""

from collections.abc import Callable
from dataclasses import dataclass

from router.pods.table import Pod, PodTable


@dataclass(frozen=True, slots=True)
class Component:
    """The health of one part, with its reason."""

    ok: bool
    reason: str


class Health:
    """The health of all components; the router is ready if all of them are."""

    def __init__(self, components: dict[str, Component]) -> None:
        self._components = dict(components)
        self._looks: dict[str, Callable[[], Component]] = {}

    def set(self, name: str, ok: bool, reason: str) -> None:
        """Set the health of a component."""
        self._components[name] = Component(ok, reason)

    def ask(self, name: str, look: Callable[[], Component]) -> None:
        """Register a component whose health `look` returns at each report."""
        self._looks[name] = look

    def ready(self, *, besides: str = "") -> bool:
        """Whether every component is ready, besides one that does not count."""
        return all(one.ok for name, one in self.report().items() if name != besides)

    def report(self) -> dict[str, Component]:
        """Return the health of every component, by name."""
        return {**self._components, **{name: look() for name, look in self._looks.items()}}


def fitness_of(pods: PodTable) -> Component:
    """Return whether any pod serves requests and does not refuse them.

    If none does, a Pick still tries pods that do not refuse (`router.pick.eligible`).
    """
    known = list(pods)
    ready = sum(_may_serve(pod) for pod in known)
    if ready:
        return Component(ok=True, reason=f"{ready} of {len(known)} pods ready")
    if not known:
        return Component(ok=False, reason="no pod is known")
    return Component(
        ok=False, reason=f"none of {len(known)} pods is ready; {known[0].id}: {_why(known[0])}"
    )


def _may_serve(pod: Pod) -> bool:
    # If the pod itself is not probed, an unreachable shared index does not mean that it is down.
    unasked = bool(pod.shared) and pod.status.healthy is None
    return (pod.serves or unasked) and not pod.status.refuses


def _why(pod: Pod) -> str:
    if pod.status.healthy is False:
        return pod.status.reason
    return f"its event stream is not connected, {pod.status.reason}"
