"""The policy study's variants, as warmpath policies with settings of the simulated router.

The study simulated 23 published policies and three of its own, before warmpath was written.

A variant is written `POLICY[@option=value...]`: a policy of `scorer.policy` with its options, and

    @arriving=0   prompts just sent to a pod do not count as cached there before events announce them:
                  the study's names without `+spec`
    @record=1     in place of events, an LRU of the prompts sent to each pod, as large as its cache

`pooled` is not a policy but a bound: one cache of all pods' size, which every pod reads at no cost, and
the shortest booked wait.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from warmpath.scorer.policy import UnknownPolicyError, make_policy, policy_names

POOLED = "pooled"

PUBLISHED: Mapping[str, str] = {
    "random": "random",
    "round-robin": "round-robin",
    "least-load": "least-load",
    "session": "session-hash",
    "approx": "weighted@record=1@arriving=0",
    "sglang": "sglang@record=1@arriving=0",
    "longest": "longest-prefix@arriving=0",
    "llmd": "weighted@min-max=1@arriving=0",
    "llmd+spec": "weighted@min-max=1",
    "llmd_ratio+spec": "weighted",
    "dynamo": "overlap-cost@arriving=0",
    "dynamo+spec": "overlap-cost",
    "dynamo+spec@ow=4": "overlap-cost@overlap-weight=4",
    "dynamo_aic+spec": "overlap-time",
    "band": "load-band@arriving=0",
    "band+spec": "load-band",
    "preble": "preble@arriving=0",
    "preble+spec": "preble",
    "lmetric": "lmetric@arriving=0",
    "lmetric+spec": "lmetric",
    "llmd_token+spec": "llmd-token",
    "sticky": "sticky-queue@arriving=0",
    "sticky+spec": "sticky-queue",
}
"""The policy and its options here, by the study's name of each published variant."""

OWN: Mapping[str, str] = {
    "own_ett": "study-mix@kappa=0@g=0",
    "own_rho": "study-mix@g=0",
    "own_mix": "study-mix",
}
"""The study's own variants, with their names here; its `own_work` has no policy here."""

BEST_PUBLISHED = PUBLISHED["llmd_token+spec"]
"""The variant with which others are compared: the best published one of the study."""

ALL = ("warmpath", *PUBLISHED.values(), *OWN.values(), POOLED)

MATRIX_PODS = (4, 8, 16)
MATRIX_BLOCKS = (1500, 10_000)
MATRIX_LOADS = (0.50, 0.75)

STUDY_NAMES: Mapping[str, str] = {
    ours: theirs for names in (PUBLISHED, OWN) for theirs, ours in names.items()
}


@dataclass(frozen=True, slots=True)
class Variant:
    """A policy with settings of the simulated router."""

    spec: str
    """The variant as given in the option."""
    policy: str
    options: Mapping[str, float] = field(default_factory=dict)
    counts_arriving: bool = True
    keeps_record: bool = False
    is_pooled: bool = False


def variant(spec: str) -> Variant:
    """Parse `POLICY[@OPTION=NUMBER...]`, or `pooled` for POLICY.

    The options `arriving` and `record` (0 or 1) set the simulated router, the others the policy. Raises
    ValueError, also for unknown policies and options.
    """
    name, *given = spec.split("@")
    options: dict[str, float] = {}
    for one in given:
        option, equals, value = one.partition("=")
        try:
            options[option] = float(value)
        except ValueError:
            equals = ""
        if not equals:
            raise ValueError(f"policy {spec!r}: {one!r} is not option=NUMBER")
    arriving = _switch(spec, "arriving", options.pop("arriving", 1.0))
    record = _switch(spec, "record", options.pop("record", 0.0))
    if name == POOLED:
        if options:
            raise ValueError(f"policy {spec!r}: pooled takes no options")
        # The cost is the wait plus a prefill that is the same on all pods.
        return Variant(
            spec,
            "study-mix",
            {"kappa": 0.0, "g": 0.0, "mu": 1e-4},
            counts_arriving=False,
            is_pooled=True,
        )
    try:
        make_policy(name, options)
    except UnknownPolicyError as error:
        raise ValueError(f"policy {spec!r}: {error}") from error
    return Variant(spec, name, options, arriving, record)


def _switch(spec: str, option: str, value: float) -> bool:
    if value not in {0.0, 1.0}:
        raise ValueError(f"policy {spec!r}: {option} is {value:g}, not 0 or 1")
    return bool(value)


def variants(names: str) -> list[Variant]:
    """Return the variants of a comma-separated list; `published` and `all` name several.

    The study's names are accepted unless a policy here has the same name: the study's `lmetric` is
    `lmetric@arriving=0` here.
    """
    ours = policy_names()
    specs: list[str] = []
    for name in names.split(","):
        if name == "all":
            specs += ALL
        elif name == "published":
            specs += PUBLISHED.values()
        else:
            specs.append(name if name in ours else {**PUBLISHED, **OWN}.get(name, name))
    return [variant(spec) for spec in dict.fromkeys(specs)]
