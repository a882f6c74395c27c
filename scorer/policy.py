"""The policies by name, and the entry point for policies of other packages.

A policy is a frozen dataclass. Its fields, all floats with defaults, are its options; `costs` returns
the cost of each candidate in NumPy arrays. It keeps no state, so that equal calls have equal results
(`Explain` repeats a pick's call); past events that matter are in the columns and the request. If its
costs are seconds, the class attribute `costs_seconds = True` says so, and `router.pick.reason`
explains them as times.

Another package adds a policy through the entry-point group `warmpath.policies`:

    [project.entry-points."warmpath.policies"]
    my-policy = "my_package.my_policy:MyPolicy"
"""

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from random import Random
from typing import Protocol

import numpy as np

from warmpath.scorer.candidate import Request
from warmpath.scorer.columns import Column, Columns, Costs

DEFAULT = "warmpath"

GROUP = "warmpath.policies"


class Policy(Protocol):
    """The contract of policies; `tests/conformance/test_policies.py` tests each registered one."""

    def costs(self, request: Request, columns: Columns, rng: Random) -> Costs:
        """Return the cost of each candidate; `scorer.weigh` orders them by it."""


def costs_seconds(policy: Policy) -> bool:
    """Return whether a policy's costs are seconds; by default they are not."""
    return getattr(policy, "costs_seconds", False)


class UnknownPolicyError(ValueError):
    """No policy has this name, or the policy has no such option; the message lists the known ones."""


def policy_names() -> list[str]:
    """Return the names of all policies."""
    return sorted(_registered())


@cache
def _registered() -> Mapping[str, EntryPoint]:
    # Cached: searching all packages takes ten milliseconds, and any call may name a policy.
    return {point.name: point for point in entry_points(group=GROUP)}


def make_policy(name: str, options: Mapping[str, float] | None = None) -> Policy:
    """Return a policy. Raises UnknownPolicyError, and ValueError for an option's invalid value."""
    found = _registered()
    if name not in found:
        raise UnknownPolicyError(f"no policy {name!r}; known: {', '.join(sorted(found))}")
    kind = found[name].load()
    known = {field.name.replace("_", "-"): field.name for field in fields(kind)}
    given = dict(options or {})
    for option in given:
        if option not in known:
            there = ", ".join(known) or "none"
            raise UnknownPolicyError(f"policy {name} has no option {option!r}; known: {there}")
    made: Policy = kind(**{known[option]: float(value) for option, value in given.items()})
    return made


HIGHEST = 1e9
"""The highest value of an option: far above any sensible one; costs remain finite."""


def check_option(name: str, value: float, lowest: float = 0.0, highest: float = HIGHEST) -> None:
    """Raise ValueError with the option's name and limits if the value is outside them or NaN."""
    if not lowest <= value <= highest:
        raise ValueError(f"option {name} is {value:g}: from {lowest:g} to {highest:g} is allowed")


def places(*parts: Column) -> Column:
    """Return each key's place among the distinct keys: 0 for the least; equal keys have the same place.

    The columns `parts` hold the parts of all keys, the most important column first. A weighted sum of
    parts of which one outweighs the others at any size would lose the lesser ones in rounding.
    """
    order = np.lexsort(parts[::-1])
    differs = np.zeros(len(order), dtype=np.bool_)
    for part in parts:
        differs[1:] |= np.diff(part[order]) != 0
    found = np.empty(len(order))
    found[order] = np.cumsum(differs)
    return found
