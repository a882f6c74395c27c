"""Gathers the mistakes of one configuration file and puts them in the order of the file."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from warmpath.router.config.environment import Override, replaced
from warmpath.router.config.form import Path, Problem, find_line, key_lines, usable

DECIDED_BY: dict[str, tuple[str, ...]] = {
    "server": ("clients", "limits"),
    "clients": ("server", "queue"),
    "index": ("server",),
    "pods": ("models",),
    "pod-sets": ("models",),
}
"""Other tables whose values decide whether a table has a mistake."""


class Mistake(NamedTuple):
    """One mistake, or a doubt that is placed like one."""

    line: int
    """The line of the file, from 1; 0 if a variable of the environment has it."""
    place: str
    """`FILE:LINE`, or the variable."""
    key: str
    problem: str

    def __str__(self) -> str:
        return ": ".join(filter(None, self[1:]))


class Mistakes:
    """The mistakes of a file with the content `raw`, whose text is `text`; `source` names it.

    `overrides` replace keys of it. Mistakes of form are found at once; others are added.
    """

    def __init__(
        self, raw: dict[str, Any], text: str, source: str, overrides: Sequence[Override] = ()
    ) -> None:
        self.source = source
        self.overrides = overrides
        self.config, form = usable(replaced(raw, overrides))
        """The configuration without its wrong values."""
        self._lines = key_lines(text)
        self._found = form.problems
        self._wrong = {_table(path) for path in form.wrong}

    def add(self, found: Iterable[Problem]) -> None:
        """Add mistakes, except those that may come of a value of wrong form, which is not known."""
        self._found += [one for one in found if not self._is_doubtful(one[0])]

    def spares(self, table: Path) -> bool:
        """Return whether no mistake was found in a table, or in one of an array of tables."""
        return all(_table(at) != table for at, _ in self._found)

    def in_order(self) -> list[Mistake]:
        """Return all mistakes: those of variables, then those of the file in its order."""
        unusable = [
            Mistake(0, one.variable, dotted(one.at) if one.at else "", one.problem)
            for one in self.overrides
            if one.problem
        ]
        found = [self.placed(at, why) for at, why in self._found]
        return sorted([*unusable, *found], key=lambda one: one.line)

    def placed(self, at: Path, problem: str) -> Mistake:
        """Return a problem with its line, or with the variable that replaces its key."""
        for one in self.overrides:
            if not one.problem and at[: len(one.at)] == one.at:
                return Mistake(0, one.variable, dotted(at), problem)
        line = find_line(self._lines, at)
        return Mistake(line, f"{self.source}:{line}", dotted(at), problem)

    def described(self) -> list[str]:
        """Return each mistake as `FILE:LINE: KEY: problem` or `VARIABLE: KEY: problem`."""
        return [str(one) for one in self.in_order()]

    def _is_doubtful(self, at: Path) -> bool:
        others = DECIDED_BY.get(str(at[0]), ())
        return _table(at) in self._wrong or any(wrong[0] in others for wrong in self._wrong)


def _table(at: Path) -> Path:
    return at[:2] if len(at) > 1 and isinstance(at[1], int) else at[:1]


def dotted(path: Path) -> str:
    """Return a path as one word, such as `pods[1].address`."""
    parts = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return parts.lstrip(".") or "file"
