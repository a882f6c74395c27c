"""Processor time and memory of another process."""

import os
from pathlib import Path


def busy(process: int) -> float:
    """Return the processor seconds that a process has used, in steps of 0.01 s."""
    # The name, in parentheses, may have spaces; user and system time are fields 14 and 15.
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(process: int) -> int:
    """Return the resident memory of a process, bytes."""
    for line in Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise RuntimeError(f"process {process} has no VmRSS")
