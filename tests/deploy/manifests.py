"""Reads what deployments are made of: the chart, overlays, Kubernetes' schemas, PromQL and lock files.

The programs, docker-compose too, and the schemas lie in `.venv/deploy` (constraints-deploy.txt), for Linux on x86-64.
"""

import json
import platform
import re
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.markers import Marker

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "warmpath"
FOLDER = Path(sys.prefix) / "deploy"
VERSIONS = ("1.30", "1.33", "1.37")
"""The oldest Kubernetes that the chart allows, the newest whose schemas are there, and one between."""

Object = dict[str, Any]

needs_helm = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"),
    reason="the wheels have helm, kubectl and docker-compose for Linux on x86-64 only",
)


def run(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    """Run helm, kubectl or docker-compose, by name."""
    program = FOLDER / "bin" / str(words[0])
    return subprocess.run(
        [program, *words[1:]], capture_output=True, text=True, timeout=60, check=False
    )


def objects(text: str) -> list[Object]:
    """Return the objects of a YAML file."""
    return [one for one in yaml.safe_load_all(text) if one]


def chart(*options: str | Path) -> list[Object]:
    """Return the objects of the chart, installed as `warmpath` in the namespace `inference`."""
    words = ("helm", "template", "warmpath", CHART, "--namespace", "inference", *options)
    return objects(printed(*words))


@cache
def printed(*words: str | Path) -> str:
    """Return the output of a program, run once for all tests of a process."""
    ended = run(*words)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def overlay(name: str) -> list[Object]:
    """Return the objects of an overlay."""
    return objects(printed("kubectl", "kustomize", DEPLOY / "kustomize" / "overlays" / name))


def only(found: list[Object], kind: str) -> Object:
    """Return the one object of a kind."""
    (one,) = [one for one in found if one["kind"] == kind]
    return one


def pod_of(found: list[Object], kind: str = "Deployment") -> Object:
    spec: Object = only(found, kind)["spec"]["template"]["spec"]
    return spec


def restricted(pod: Object, container: Object) -> bool:
    """Return whether the pod security standard `restricted` admits a container."""
    outer, own = pod.get("securityContext", {}), container.get("securityContext")
    return (
        own is not None
        and bool(own.get("runAsNonRoot", outer.get("runAsNonRoot")))
        and own["allowPrivilegeEscalation"] is False
        and own["capabilities"] == {"drop": ["ALL"]}
        and own.get("seccompProfile", outer.get("seccompProfile")) == {"type": "RuntimeDefault"}
        and own.get("runAsUser", outer.get("runAsUser")) != 0
    )


@cache
def schema_file(version: str, name: str) -> Any:
    """Return a file of a version's schemas; None where there is none."""
    folder = FOLDER / "kubernetes_validate" / "kubernetes-json-schema"
    file = folder / f"v{version}.0-local-strict" / f"{name}.json"
    return json.loads(file.read_text()) if file.is_file() else None


@cache
def definitions(version: str) -> Any:
    """Return what a version's schemas refer to, as jsonschema takes it."""
    import referencing
    import referencing.jsonschema

    specification = referencing.jsonschema.DRAFT202012
    held = referencing.Resource.from_contents(schema_file(version, "_definitions"), specification)
    return referencing.Registry().with_resource("_definitions.json", held).crawl()


def problems(found: Object, version: str) -> list[str]:
    """Return what a version of Kubernetes says against an object; fields that it does not know, too."""
    # The wheels' other packages come last: those of the tests are in the environment itself.
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    import jsonschema

    group, _, api = found["apiVersion"].rpartition("/")
    words = [found["kind"].lower(), *([group.partition(".")[0]] if group else []), api]
    schema = schema_file(version, "-".join(words))
    assert schema is not None, f"Kubernetes {version} has no {found['apiVersion']} {found['kind']}"
    checker = jsonschema.Draft202012Validator(schema, registry=definitions(version))
    return [f"{error.json_path}: {error.message}" for error in checker.iter_errors(found)]


@dataclass
class Pinned:
    """A package of a lock file."""

    name: str
    version: str
    marker: str
    """Where it is installed, as PEP 508 has it; empty: everywhere."""
    hashes: set[str] = field(default_factory=set)

    @property
    def is_for_here(self) -> bool:
        """Whether it is installed on this machine."""
        return not self.marker or Marker(self.marker).evaluate()


def locked(name: str) -> dict[str, Pinned]:
    """Return the packages of a lock file, by name. Fails if it has an address beside them."""
    found: dict[str, Pinned] = {}
    package = None
    for line in (ROOT / name).read_text().splitlines():
        assert "://" not in line
        if match := re.match(r"([a-z0-9-]+)==(\S+)(?: ; (.*?))?(?: \\)?$", line):
            package = found[match[1]] = Pinned(match[1], match[2], match[3] or "")
        elif (match := re.search(r"--hash=(sha256:[0-9a-f]{64})", line)) and package is not None:
            package.hashes.add(match[1])
    return found


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
