"""Reads expressions of PromQL: which series they select, and which labels they name."""

import re
import sys
from dataclasses import dataclass
from typing import Any

from tests.deploy.manifests import FOLDER

# The wheels' other packages come last: those of the tests are in the environment itself.
if str(FOLDER) not in sys.path:
    sys.path.append(str(FOLDER))

RANGES = re.compile(r"\$__rate_interval|\$__interval|\$__range")
"""Ranges that Grafana puts into an expression."""


@dataclass(frozen=True)
class Selector:
    """The series that one part of an expression selects."""

    name: str
    matchers: tuple[tuple[str, str], ...]
    """Labels, each with its value or with values that `|` divides."""


@dataclass(frozen=True)
class Read:
    """What an expression names."""

    selectors: list[Selector]
    labels: set[str]
    """Labels by which it groups or joins."""


def read(expression: str) -> Read:
    """Return what an expression names. Raises ValueError if it is not PromQL."""
    import promql_parser

    found = Read([], set())

    def visit(node: Any) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            matchers = tuple((one.name, one.value) for one in node.matchers.matchers)
            found.selectors.append(Selector(node.name or "", matchers))
        modifier = getattr(node, "modifier", None)
        for labels in (modifier, getattr(modifier, "matching", None)):
            found.labels.update(getattr(labels, "labels", ()))
        found.labels.update(getattr(modifier, "group_labels", None) or ())

    promql_parser.walk(promql_parser.parse(RANGES.sub("5m", expression)), visit)
    return found
