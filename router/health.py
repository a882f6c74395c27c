"""Whether the router is fit to answer, by named component."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Component:
    """One part's fitness, and why it is as it is."""

    ok: bool
    reason: str


class Health:
    """Components and what they come to: ready iff all of them are.

    A pod that is down makes no component unfit: the router answers without it.
    """

    def __init__(self, components: dict[str, Component]) -> None:
        self._components = dict(components)

    def set(self, name: str, ok: bool, reason: str) -> None:
        """Say how a component is."""
        self._components[name] = Component(ok, reason)

    def ready(self) -> bool:
        """Whether every component is fit."""
        return all(component.ok for component in self._components.values())

    def report(self) -> dict[str, Component]:
        """Return every component."""
        return dict(self._components)
