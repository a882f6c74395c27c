"""A warmpath process, observed from outside: its memory, its descriptors, its log."""

import asyncio
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path

MOST_LINE = 1200
"""Characters of a log's line: `process.logs.MOST_CHARACTERS`, and a line's other parts."""
MOST_LINES_FIRST, MOST_LINES_A_MINUTE = 4000, 400
"""Log lines: each place in the code may log 20 at once for each pod, then one in 10 s."""
NEVER = ("Traceback", "a bug of ours", "never retrieved", "Task exception", "died", "dead task")
"""Texts that no line of the log may have."""
MOST_GROWTH, MOST_GROWN_BYTES, MOST_GROWN_FILES = 0.05, 16 << 20, 16
"""Growth from the second quarter to the last (medians): memory's share and bytes, and descriptors."""


@dataclass
class WatchedProcess:
    """One process; its memory counts that of its child processes."""

    name: str
    folder: Path
    words: tuple[str, ...]
    memory: list[int] = field(default_factory=list)
    files: list[int] = field(default_factory=list)

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    async def start(self) -> bytes:
        """Start it; return the line that it prints when it is ready."""
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", *self.words,
                stdout=asyncio.subprocess.PIPE, stderr=log,
            )  # fmt: skip
        assert self.process.stdout
        return await self.process.stdout.readline()

    async def end(self, seconds: float) -> int | None:
        """Send SIGTERM; return its exit status, or kill it and return None after `seconds`."""
        if self.process.returncode is None:
            self.process.terminate()
        try:
            return await asyncio.wait_for(self.process.wait(), seconds)
        except TimeoutError:
            self.process.kill()
            return None

    def look(self) -> None:
        tree = _tree(self.process.pid)
        self.memory.append(sum(map(_resident, tree)))
        self.files.append(len(list(Path(f"/proc/{self.process.pid}/fd").iterdir())))

    def figures(self) -> dict[str, object]:
        """Return the medians of memory and descriptors in each quarter, and the number of log lines."""
        return {
            f"{self.name}: {what}": [round(one / unit, 1) for one in _quarters(seen)]
            for what, seen, unit in (("MiB", self.memory, 1 << 20), ("descriptors", self.files, 1))
        } | {f"{self.name}: log lines": len(self.log.read_bytes().splitlines())}

    def problems(self, minutes: float) -> list[str]:
        """Return the limits that the process broke."""
        found = []
        _, before, _, after = _quarters(self.memory)
        if after > before * (1 + MOST_GROWTH) + MOST_GROWN_BYTES:
            found.append(f"memory grew from {before / 2**20:.0f} to {after / 2**20:.0f} MiB")
        _, before, _, after = _quarters(self.files)
        if after > before + MOST_GROWN_FILES:
            found.append(f"descriptors grew from {before:.0f} to {after:.0f}")
        lines = self.log.read_text(errors="replace").splitlines()
        if len(lines) > MOST_LINES_FIRST + minutes * MOST_LINES_A_MINUTE:
            found.append(f"the log has {len(lines)} lines")
        found += [f"a line has {len(one)} characters" for one in lines if len(one) > MOST_LINE][:3]
        found += [f"the log says {one[:200]!r}" for one in lines if any(w in one for w in NEVER)][
            :5
        ]
        return [f"{self.name}: {one}" for one in found]


def _quarters(seen: list[int]) -> list[float]:
    size = max(1, len(seen) // 4)
    return [statistics.median(seen[at * size : (at + 1) * size] or [0]) for at in range(4)]


def _tree(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return [pid]
    return [pid, *(one for child in children for one in _tree(int(child)))]


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
    except OSError:
        return 0
