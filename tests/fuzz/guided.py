"""The parts common to all fuzz targets: a corpus of seeds, limits, and the folder of found inputs."""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import atheris

ROOT = Path(__file__).resolve().parents[2]
FOUND = ROOT / "out" / "fuzz"
# Functions that Numba compiles cannot be instrumented; atheris wants each module named.
COMPILED = [
    ".".join(("warmpath", *path.relative_to(ROOT).with_suffix("").parts))
    for path in (ROOT / "indexer/compiled").rglob("*.py")
]
os.environ["NUMBA_BOUNDSCHECK"] = "1"


def asked(description: str | None, targets: Iterable[str]) -> tuple[str, int]:
    """Return the target and the seconds that the command line gives."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("target", choices=sorted(targets))
    parser.add_argument("--seconds", type=int, default=60)
    args = parser.parse_args()
    return args.target, args.seconds


def fuzz(
    name: str, seconds: int, seed: Callable[[Path], None], target: Callable[[bytes], None]
) -> None:
    """Fuzz one target for some seconds; `seed` writes its corpus into a folder."""
    with tempfile.TemporaryDirectory() as corpus:
        seed(Path(corpus))
        FOUND.mkdir(parents=True, exist_ok=True)
        options = [
            sys.argv[0], corpus, f"-max_total_time={seconds}", "-max_len=4096", "-timeout=5",
            "-rss_limit_mb=1024", f"-artifact_prefix={FOUND}/{name}-", "-print_final_stats=1",
        ]  # fmt: skip
        atheris.Setup(options, target)
        atheris.Fuzz()
