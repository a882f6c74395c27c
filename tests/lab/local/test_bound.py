"""A local cluster's processes end with the command that started them, even if that is killed."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from warmpath.cli.child import bound

PARENT = """
import asyncio, sys
from pathlib import Path
from warmpath.lab.local.cluster import Process

async def main():
    child = Process("a child", Path(sys.argv[1]))
    await child.start("http.server", "--bind", "127.0.0.1", "0")
    print(child._process.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks Linux's kernel")


def test_a_child_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path / "log")]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        assert not select.select([child], [], [], 0)[0]
        parent.send_signal(signal.SIGKILL)
    ended, _, _ = select.select([child], [], [], 60)
    os.close(child)
    assert ended


def test_a_child_whose_parent_has_ended_meanwhile_does_not_begin() -> None:
    words = bound([sys.executable, "-c", "print('begun')"])
    words[words.index(str(os.getpid()))] = "1"
    assert subprocess.run(words, check=True, capture_output=True).stdout == b""
