"""What may take the place of a file that a process reads again."""

import contextlib
import os
import shutil
import socket
from collections.abc import Callable, Mapping
from pathlib import Path


def _socket(path: Path) -> None:
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as bound:
        # A socket's path is short.
        bound.bind(path.name)


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


ODD: Mapping[str, tuple[Callable[[Path], object], str]] = {
    "pipe": (os.mkfifo, "is a pipe, not a file"),
    "endless": (lambda path: path.symlink_to("/dev/zero"), "is a device, not a file"),
    "folder": (Path.mkdir, "is a folder, not a file"),
    "socket": (_socket, "is a socket, not a file"),
    "huge": (_huge, "has more than"),
    "loop": (lambda path: path.symlink_to(path), "symbolic links"),
}
"""By name: what makes it at a path that is free, and what an error says of it."""


def become(path: Path, name: str) -> str:
    """Put one of ODD in the place of whatever a path has; return what an error says of it."""
    remove(path)
    make, said = ODD[name]
    make(path)
    return said


def remove(path: Path) -> None:
    """Remove whatever a path has."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
