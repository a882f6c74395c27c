"""`warmpath simulate` leaves no process behind when a signal ends it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

COMMAND = (
    "-m", "warmpath.cli", "simulate", "--traffic", "docs", "--pods", "8,4", "--requests", "100000",
    "--policy", "warmpath", "--processes", "2",
)  # fmt: skip


def of_session(session: int) -> set[int]:
    """Return the processes of a session that still run."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.add(int(stat.parent.name))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_sigterm_ends_every_process_of_a_simulation() -> None:
    process = subprocess.Popen(
        [sys.executable, *COMMAND],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd=Path(__file__).parents[2],
    )
    try:
        # Itself, what tracks its resources, and two that simulate.
        while len(of_session(process.pid)) < 4:
            assert process.poll() is None
            time.sleep(0.05)
        process.terminate()
        assert process.wait() == 128 + signal.SIGTERM
        while of_session(process.pid):
            time.sleep(0.05)
    finally:
        for one in of_session(process.pid):
            os.kill(one, signal.SIGKILL)
