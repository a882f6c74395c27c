"""Renders the chart with helm and the overlays with kubectl, and compares objects with Kubernetes' schemas.

The programs, docker-compose too, and the schemas lie in `.venv/deploy` (constraints-deploy.txt), for Linux on x86-64.
"""

import json
import platform
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

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
