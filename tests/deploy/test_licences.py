"""Whatever goes into the images may be given on: each package's licence is one of a short list."""

from importlib.metadata import metadata

import pytest

from tests.deploy.lock_files import locked

ALLOWED = {
    "0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0",
    "MIT", "MIT-0", "MPL-2.0", "PSF-2.0", "Zlib",
}  # fmt: skip
"""Licences by their SPDX names. All let a package be given on beside code under Apache-2.0; MPL-2.0 wants
changes of the package's own files to be published, and none is changed."""
OLDER = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
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
    said = said or [about.get("License") or ""]
    return " AND ".join(OLDER.get(one, one) for one in said)


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
