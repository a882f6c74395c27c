"""Keeps a Docker engine until standard input ends, as it does however the process that asked for it ends.

    python -m tests.compose.keep FOLDER BRIDGE

The engine and its containers are a namespace of processes and mounts, which ends with the engine's process. Then the
bridge and the folder go; the last of what the engine said is printed.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

NAMESPACE = ("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--mount-proc", "--pid")
NAMESPACE += ("--fork", "--kill-child")
"""Runs a command in such a namespace, which ends with the process that began it, too."""
# No rule of iptables is needed: containers meet on their bridge, and docker-proxy serves published ports.
OPTIONS = ("--bridge", "none", "--iptables=false", "--ip6tables=false", "--ip-forward=false")
REMOVALS = 50


def main(folder: Path, bridge: str) -> None:
    words = [*NAMESPACE, "dockerd", *OPTIONS, "--host", f"unix://{folder}/s"]
    words += ["--exec-opt", "native.cgroupdriver=cgroupfs", "--cgroup-parent", bridge]
    for option, name in {"pidfile": "pid", "data-root": "data", "exec-root": "exec"}.items():
        words += [f"--{option}", f"{folder}/{name}"]
    with (folder / "log").open("wb") as log:
        engine = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    while engine.poll() is None and not select.select([sys.stdin], [], [], 0.2)[0]:
        pass
    children = Path(f"/proc/{engine.pid}/task/{engine.pid}/children")
    for child in children.read_text().split() if engine.poll() is None else ():
        os.kill(int(child), signal.SIGKILL)
    engine.wait()
    with suppress(OSError):
        subprocess.run(["ip", "link", "delete", bridge], stderr=subprocess.DEVNULL, check=False)
        for group in sorted(Path("/sys/fs/cgroup").glob(f"**/{bridge}/**/"), reverse=True):
            group.rmdir()
    said = (folder / "log").read_bytes()[-1500:]
    for _ in range(REMOVALS):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            break
        # Whatever else the ended process began still writes.
        time.sleep(0.1)
    with suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), said)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
