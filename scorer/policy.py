"""The policies by name, and how others plug in.

A policy is a frozen dataclass: its fields, all floats with defaults, are its options, and `costs` says
what each candidate costs, a NumPy array with a place for each. It keeps no state, so that the same
question has the same answer (`Explain` asks it again); what it needs to know of the past is in the
columns and the request.

A package of its own adds one through the entry-point group `warmpath.policies`:

    [project.entry-points."warmpath.policies"]
    my-policy = "my_package.my_policy:MyPolicy"
"""

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from random import Random
from typing import Protocol

from scorer.candidate import Request
from scorer.columns import Columns, Costs

DEFAULT = "warmpath"

GROUP = "warmpath.policies"


class Policy(Protocol):
    """Costs candidates. `tests/conformance/test_policies.py` runs on each of ours."""

    def costs(self, request: Request, columns: Columns, rng: Random) -> Costs:
        """Return what each candidate costs; `scorer.order` makes an order of it."""


class UnknownPolicyError(ValueError):
    """No policy has the name, or the policy no such option; says which there are."""


def policy_names() -> list[str]:
    """Return the names of all policies."""
    return sorted(_registered())


@cache
def _registered() -> Mapping[str, EntryPoint]:
    # To look through all packages takes ten milliseconds, and a caller may name any policy.
    return {point.name: point for point in entry_points(group=GROUP)}


def make_policy(name: str, options: Mapping[str, float] | None = None) -> Policy:
    """Return a policy. Raises UnknownPolicyError, and ValueError where it refuses an option's value."""
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
