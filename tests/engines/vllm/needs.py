"""What a run needs of the machine, checked before anything is started."""

import shutil
import sys
from pathlib import Path

MEMORY = 6 << 30
"""Bytes: two engines with three ranks, their publishers, two routers, Envoy and Redis took 5 GB together."""
DISK = 1 << 30
"""Bytes for logs and results."""
INSTALLED_DISK = 3 << 30
"""Bytes for vLLM with what pip keeps meanwhile, before it is installed."""


def check(folder: Path, *, disk: int = DISK) -> None:
    """End the process with a message where memory, or the disk that has `folder`, is short."""
    short = []
    if not shutil.which("g++"):
        short.append("there is no g++, with which vLLM compiles a kernel for prompt_logprobs")
    free = shutil.disk_usage(folder).free
    if free < disk:
        short.append(f"{folder} has {free >> 20} MiB of disk free, and {disk >> 20} MiB are needed")
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) << 10
            if available < MEMORY:
                short.append(
                    f"{available >> 20} MiB of memory are available, and {MEMORY >> 20} MiB are needed"
                )
    if short:
        sys.exit("test-engines does not begin: " + "; ".join(short))


if __name__ == "__main__":
    where = Path(sys.argv[1])
    where.mkdir(parents=True, exist_ok=True)
    check(where, disk=DISK if (where / "ready").exists() else INSTALLED_DISK)
