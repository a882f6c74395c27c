"""Whether the router is fit to answer, by named component: what both listeners say."""

from collections.abc import Callable
from dataclasses import dataclass

from router.pods.table import Pod, PodTable


@dataclass(frozen=True, slots=True)
class Component:
    """One part's fitness, and why it is as it is."""

    ok: bool
    reason: str


class Health:
    """Components and what they come to: ready iff all of them are."""

    def __init__(self, components: dict[str, Component]) -> None:
        self._components = dict(components)
        self._looks: dict[str, Callable[[], Component]] = {}

    def set(self, name: str, ok: bool, reason: str) -> None:
        """Say how a component is."""
        self._components[name] = Component(ok, reason)

    def ask(self, name: str, look: Callable[[], Component]) -> None:
        """Have a component looked at each time that somebody wants to know."""
        self._looks[name] = look

    def ready(self) -> bool:
        """Whether every component is fit."""
        return all(component.ok for component in self.report().values())

    def report(self) -> dict[str, Component]:
        """Return every component."""
        return {**self._components, **{name: look() for name, look in self._looks.items()}}


def fitness_of(pods: PodTable) -> Component:
    """Return whether there is a pod that a request may be sent to (as `router.pick.eligible` says)."""
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
    # An index that cannot be reached says nothing of the pod, where nobody asks the pod itself.
    unasked = bool(pod.shared) and pod.status.healthy is None
    return (pod.serves or unasked) and not pod.status.refuses


def _why(pod: Pod) -> str:
    if pod.status.healthy is False:
        return pod.status.reason
    return f"its event stream is not connected, {pod.status.reason}"
