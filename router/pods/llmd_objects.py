"""Reads llm-d's objects, which say the priorities of objectives and other names of models. No sockets.

Source: llm-d-router, `apix/v1alpha2` (InferenceObjective, InferenceModelRewrite) and, for the order of
rules and the weights, `pkg/epp/datastore/modelrewritestore.go` and `pkg/epp/requestcontrol/director.go`.
Unlike llm-d, which draws lots for each request, a key chooses, so that a session keeps its model.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

OBJECTIVES = "inferenceobjectives"
REWRITES = "inferencemodelrewrites"


class _Named(Struct, rename="camel"):
    name: str
    creation_timestamp: str = ""


class _PoolRef(Struct):
    name: str


class _ObjectiveSpec(Struct, rename="camel"):
    pool_ref: _PoolRef
    priority: int | None = None


class InferenceObjective(Struct):
    """What is read of an objective."""

    metadata: _Named
    spec: _ObjectiveSpec


class _ModelMatch(Struct):
    value: str
    type: Literal["Exact"] = "Exact"


class _Match(Struct):
    model: _ModelMatch


class Target(Struct, rename="camel"):
    """A model that requests may go to."""

    model_rewrite: str
    weight: Annotated[int, Meta(ge=0)] | None = None


class _Rule(Struct):
    matches: list[_Match] | None = None
    targets: list[Target] | None = None


class _RewriteSpec(Struct, rename="camel"):
    pool_ref: _PoolRef
    rules: list[_Rule]


class InferenceModelRewrite(Struct):
    """What is read of a rewrite."""

    metadata: _Named
    spec: _RewriteSpec


class _List(Struct):
    items: list[msgspec.Raw] | None


class _Item(Struct):
    metadata: _Named


_LIST = msgspec.json.Decoder(_List)
Kind = TypeVar("Kind", InferenceObjective, InferenceModelRewrite)


class LlmdObjects:
    """What the objects say; nothing before the first `read`."""

    def __init__(self) -> None:
        self.priorities: Mapping[str, int] = {}
        """By an objective's name, how many classes it is above the usual one; below, if negative."""
        self._targets: Mapping[str, Sequence[Target]] = {}
        """By a model's name; an empty one: of all other models."""

    def read(
        self, objectives: Iterable[bytes], rewrites: Iterable[bytes], pool: str = ""
    ) -> list[str]:
        """Take these lists in place of the last ones; return the problems of objects that are left out.

        Only a pool's objects count, if it is named. Of objectives with one name the first counts; of
        rules the one that names the model, then the oldest object's. Raises ValueError if these are no
        lists.
        """
        problems: list[str] = []
        priorities: dict[str, int] = {}
        for objective in _items(InferenceObjective, objectives, pool, problems):
            priorities.setdefault(objective.metadata.name, objective.spec.priority or 0)
        targets: dict[str, Sequence[Target]] = {}
        found = _items(InferenceModelRewrite, rewrites, pool, problems)
        for one in sorted(found, key=lambda one: one.metadata.creation_timestamp):
            for rule in one.spec.rules:
                for name in [match.model.value for match in rule.matches or ()] or [""]:
                    targets.setdefault(name, rule.targets or ())
        self.priorities, self._targets = priorities, targets
        return problems

    def targets(self, model: str) -> Sequence[Target]:
        """Return the models to which requests for a model may go; none if they stay with it."""
        return self._targets.get(model, self._targets.get("", ()))


def _items(
    kind: type[Kind], lists: Iterable[bytes], pool: str, problems: list[str]
) -> Iterator[Kind]:
    for body in lists:
        for raw in _LIST.decode(body).items or ():
            try:
                one = msgspec.json.decode(raw, type=kind)
            except msgspec.ValidationError as error:
                name = msgspec.json.decode(raw, type=_Item).metadata.name
                problems.append(f"{kind.__name__} {name!r} is left out: {error}")
                continue
            if pool in ("", one.spec.pool_ref.name):
                yield one


def choose(targets: Sequence[Target], key: bytes) -> str:
    """Return the model that a key has among targets, by weight; without any weight all count alike.

    Equal keys have equal models in every router, also after a change of weights, as far as these allow.
    """
    weights = [one.weight or 0 for one in targets]
    if not any(weights):
        weights = [1] * len(targets)
    # The hash is spread over all weights, each target's after those of the targets before it.
    place = int.from_bytes(blake2b(key, digest_size=8).digest(), "big") * sum(weights) >> 64
    for one, weight in zip(targets, weights, strict=True):
        if place < weight:
            return one.model_rewrite
        place -= weight
    return ""
