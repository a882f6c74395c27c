"""A wall clock that is wrong by any seconds, for a process; its monotonic clock is right."""

import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

from tests.servers.service import Service

SOURCE = Path(__file__).with_suffix(".c")


class WrongClock(Service):
    """Counts for processes that are started with `environment`. Right until `set`."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="warmpath-clock-"))
        self._ahead = self._folder / "ahead"
        self._library = self._folder / "wrong_clock.so"

    @staticmethod
    def can_be() -> bool:
        """Return whether there is a C compiler here."""
        return shutil.which("cc") is not None

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "WRONG_CLOCK": str(self._ahead)}

    def start(self) -> None:
        """Compile it."""
        self._ahead.write_bytes(bytes(8))
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", self._library, SOURCE], check=True)

    def set(self, ahead: float) -> None:
        """Set by how many seconds it is ahead, from now on."""
        # The processes have mapped the file, so it is changed in place.
        with self._ahead.open("r+b") as opened:
            opened.write(struct.pack("<q", round(ahead)))

    def close(self) -> None:
        """Remove the files."""
        shutil.rmtree(self._folder, ignore_errors=True)
