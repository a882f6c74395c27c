"""Policies are found by name, those of other packages too."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.scorer.ranked import rank
from warmpath.lab.policies.load_band import LoadBand
from warmpath.scorer.candidate import Candidate, Request
from warmpath.scorer.policy import (
    DEFAULT,
    GROUP,
    UnknownPolicyError,
    _registered,
    costs_seconds,
    make_policy,
    policy_names,
)

PACKAGE = """
from dataclasses import dataclass

import numpy as np

from warmpath.scorer.columns import Costs


@dataclass(frozen=True)
class LastInTheAlphabet:
    costs_seconds = True
    first_letter: float = 97.0

    def costs(self, request, columns, rng):
        return Costs(np.array([self.first_letter - ord(pod) for pod, _ in columns.names]))
"""


@pytest.fixture
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "plugged_in_policy.py").write_text(PACKAGE)
    info = tmp_path / "plugged_in_policy-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged-in-policy\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        f"[{GROUP}]\nlast-in-the-alphabet = plugged_in_policy:LastInTheAlphabet\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    # A process looks once for the policies that there are.
    _registered.cache_clear()
    yield
    _registered.cache_clear()


@pytest.mark.usefixtures("_installed")
def test_a_policy_of_another_package_is_found_by_its_name() -> None:
    assert "last-in-the-alphabet" in policy_names()
    policy = make_policy("last-in-the-alphabet", {"first-letter": 90})
    assert costs_seconds(policy)
    assert not costs_seconds(LoadBand())
    ranked = rank(policy, Request(1), [Candidate(pod, 0, 0, 0.0) for pod in "acb"], Random(0))
    assert [(one.candidate.pod, one.cost) for one in ranked] == [
        ("c", -9.0),
        ("b", -8.0),
        ("a", -7.0),
    ]


def test_a_package_that_is_not_installed_adds_none() -> None:
    assert "last-in-the-alphabet" not in policy_names()


def test_the_known_policies_are_there_and_the_default_is_one_of_them() -> None:
    assert DEFAULT in policy_names()
    assert {
        "least-load", "llmd-token", "lmetric", "load-band", "longest-prefix", "overlap-cost",
        "overlap-time", "preble", "random", "round-robin", "session-hash", "sglang",
        "sticky-queue", "study-mix", "warmpath", "weighted",
    } <= set(policy_names())  # fmt: skip


@pytest.mark.parametrize(
    ("name", "options", "error", "told"),
    [
        ("warmest", {}, UnknownPolicyError, r"no policy 'warmest'; known: least-load, .*weighted"),
        ("load-band", {"slak": 1}, UnknownPolicyError, "policy load-band has no option 'slak'; known: factor, slack"),
        ("random", {"seed": 1}, UnknownPolicyError, "policy random has no option 'seed'; known: none"),
        ("load-band", {"factor": 0.5}, ValueError, r"option factor is 0.5: from 1 to 1e\+09 is allowed"),
        ("weighted", {"min-max": 0.5}, ValueError, "option min-max is 0.5: 0 or 1 is allowed"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_what_there_is(
    name: str, options: dict[str, float], error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=f"^{told}$"):
        make_policy(name, options)
