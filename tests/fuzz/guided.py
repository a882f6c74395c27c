"""The parts common to all fuzz targets: a corpus of seeds, limits, and the folder of found inputs."""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris

FOUND = Path(__file__).resolve().parents[2] / "out" / "fuzz"


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
