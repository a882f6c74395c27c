"""Runs cells, several at once, and keeps their figures in a file that is named by the code's version.

A run that is stopped goes on where it was; a change of the code that is simulated begins anew.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cache, partial
from hashlib import sha256
from math import inf
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from warmpath.lab.simulate.cell import Cell
from warmpath.lab.simulate.figures import Figures
from warmpath.lab.simulate.run import run

SIMULATED = (
    "indexer",
    "lab/policies",
    "lab/simulate",
    "lab/simworker",
    "process",
    "router",
    "scorer",
)
"""The packages whose code decides about the figures."""
ROOT = Path(__file__).resolve().parents[3]


@cache
def code_version() -> str:
    """Return the first digits of a hash of the code that is simulated."""
    found = sha256()
    for package in SIMULATED:
        for path in sorted((ROOT / package).rglob("*.py")):
            found.update(str(path.relative_to(ROOT)).encode())
            found.update(path.read_bytes())
    return found.hexdigest()[:12]


@cache
def _content(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()[:12]


def _key(cell: Cell) -> str:
    """Return a cell as JSON; a trace is named by its content."""
    settings: dict[str, Any] = asdict(cell)
    if isinstance(cell.trace, Path):
        settings["trace"] = _content(cell.trace)
    return json.dumps(settings, sort_keys=True)


class Kept:
    """The figures of cells that were run. `progress` gets a batch's number of done cells, and of all.

    No cell is begun after `deadline`, by `time.monotonic`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        processes: int = 1,
        deadline: float = inf,
        progress: Callable[[int, int], None] = lambda _done, _all: None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{code_version()}.jsonl"
        self._processes = processes
        self._deadline = deadline
        self._progress = progress
        self._found: dict[str, Figures] = {}
        self.path.touch()
        for line in self.path.read_text(encoding="utf-8").splitlines():
            # The line that was being written when a run was stopped is no JSON.
            with suppress(ValueError):
                self._keep(line)

    def _keep(self, line: str) -> None:
        key, figures = json.loads(line)
        self._found[key] = Figures(**figures)

    def figures(self, cell: Cell) -> Figures | None:
        return self._found.get(_key(cell))

    def of_seeds(self, cell: Cell, seeds: Sequence[int]) -> list[Figures]:
        """Return the figures of a cell with each of the seeds with which it was run."""
        found = (self.figures(replace(cell, seed=seed)) for seed in seeds)
        return [one for one in found if one is not None]

    def run(self, cells: Iterable[Cell]) -> None:
        """Run the cells that are missing, in order; stop at the deadline."""
        missing = list(dict.fromkeys(cell for cell in cells if self.figures(cell) is None))
        if not missing or time.monotonic() > self._deadline:
            return
        self._progress(0, len(missing))
        with self.path.open("a", encoding="utf-8") as file:
            # A line that was cut when a run was stopped must not take the next one with it.
            file.write("\n")
            for done, (cell, figures) in enumerate(self._outcomes(missing), 1):
                line = json.dumps([_key(cell), asdict(replace(figures, ttft_curve_s=[]))])
                print(line, file=file, flush=True)
                self._keep(line)
                self._progress(done, len(missing))

    def _outcomes(self, cells: Sequence[Cell]) -> Iterator[tuple[Cell, Figures]]:
        run_one = partial(_run_by, self._deadline)
        if self._processes == 1:
            yield from filter(None, map(run_one, cells))
            return
        with get_context("spawn").Pool(self._processes) as pool:
            yield from filter(None, pool.imap_unordered(run_one, cells))


def _run_by(deadline: float, cell: Cell) -> tuple[Cell, Figures] | None:
    """Run a cell; return None without a run if the deadline is over."""
    return (cell, run(cell)) if time.monotonic() <= deadline else None
