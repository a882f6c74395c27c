"""Makes the environment in which SGLang's own prefix caches run: `make test-sglang` calls it.

    .venv/bin/python tests/engines/sglang/install.py FOLDER

FOLDER gets `v` (a virtual environment with the CPU's torch and the few packages that the caches import)
and `sglang-VERSION` for each wheel of wheels.txt, only unpacked. Each step that is done is passed over
the next time, so a broken-off run goes on where it was.
"""

import platform
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
NEEDED_DISK = 2_500_000_000
"""Bytes: torch with its wheel, and SGLang's wheels with their contents."""
NEEDED_MEMORY = 1_500_000_000
"""Bytes for one driver and one router."""


def check(folder: Path) -> None:
    if sys.version_info[:2] != (3, 11) or (sys.platform, platform.machine()) != ("linux", "x86_64"):
        sys.exit(
            "SGLang's caches need Python 3.11 on Linux and x86-64: their wheels are pinned for it"
        )
    header = Path("/usr/include/openssl/evp.h")
    if not (shutil.which("g++") and shutil.which("ninja") and header.exists()):
        sys.exit("SGLang compiles its hashes: apt-get install g++ ninja-build libssl-dev")
    free = shutil.disk_usage(folder).free
    if free < NEEDED_DISK and not (folder / "v" / "done").exists():
        sys.exit(
            f"{folder} has {free >> 20} MiB free; SGLang's caches need {NEEDED_DISK >> 20} MiB"
        )
    for line in Path("/proc/meminfo").read_text().splitlines():
        available = int(line.split()[1]) << 10 if line.startswith("MemAvailable") else NEEDED_MEMORY
        if available < NEEDED_MEMORY:
            sys.exit(
                f"{available >> 20} MiB of memory are free; {NEEDED_MEMORY >> 20} MiB are needed"
            )


def make_environment(folder: Path) -> None:
    done = folder / "v" / "done"
    if done.exists():
        return
    venv.create(folder / "v", with_pip=True, clear=True)
    for lock in ("constraints-tensors.txt", "constraints-sglang.txt"):
        pip(folder, "install", "--no-deps", "--only-binary", ":all:", "-r", str(ROOT / lock))
    done.touch()


def unpack_wheels(folder: Path) -> None:
    for line in (HERE / "wheels.txt").read_text().splitlines():
        version = line.split()[0].removeprefix("sglang==")
        target = folder / f"sglang-{version}"
        if target.exists():
            continue
        only = folder / "wheel.txt"
        only.write_text(line)
        pip(folder, "download", "--no-deps", "--dest", str(folder / "wheels"), "-r", str(only))
        [wheel] = (folder / "wheels").glob(f"sglang-{version}-*.whl")
        part = folder / "part"
        shutil.rmtree(part, ignore_errors=True)
        zipfile.ZipFile(wheel).extractall(part)
        part.rename(target)
        wheel.unlink()


def pip(folder: Path, command: str, *options: str) -> None:
    python = str(folder / "v" / "bin" / "python")
    quiet = ("--quiet", "--disable-pip-version-check", "--require-hashes")
    subprocess.run([python, "-m", "pip", command, *quiet, *options], check=True)


def main() -> None:
    folder = Path(sys.argv[1]).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    check(folder)
    make_environment(folder)
    unpack_wheels(folder)


main()
