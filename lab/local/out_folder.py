"""The folder for a command's results, in which no other files are overwritten."""

import stat
from collections.abc import Iterable
from pathlib import Path

from warmpath.process.command_line import in_words

LIST = ".written-by-warmpath"
"""A file in the folder that lists the results, which a later run may replace."""
HEADING = "What warmpath wrote here, and may write over:"


class OutFolderError(ValueError):
    """A folder cannot be used for results."""


def claim(folder: Path, names: Iterable[str]) -> None:
    """Make a folder for files with these names.

    Raises OutFolderError if one of them exists and was not written by a command of warmpath, or if the
    folder cannot be made or written.
    """
    try:
        _claim(folder, names)
    except OSError as error:
        is_file = isinstance(error, FileExistsError) and folder.is_file()
        problem = f"{folder}: it is a file, not a folder" if is_file else in_words(error)
        raise OutFolderError(problem) from error


def _claim(folder: Path, names: Iterable[str]) -> None:
    names = sorted(names)
    written = _written(folder / LIST)
    for path in (folder / name for name in names):
        if _is_there(path, is_ours=path.name in written):
            raise OutFolderError(
                f"{path} is there, and no warmpath command wrote it: "
                "move it away, or name another folder"
            )
    folder.mkdir(parents=True, exist_ok=True)
    lines = [HEADING, *sorted(written.union(names))]
    (folder / LIST).write_text("\n".join([*lines, ""]), encoding="utf-8")


def _written(path: Path) -> set[str]:
    if not _is_there(path, is_ours=True):
        try:
            heading, *names = path.read_text(encoding="utf-8").splitlines()
        except (FileNotFoundError, NotADirectoryError):
            return set()
        except (ValueError, OSError):
            heading, names = "", []
        if heading == HEADING:
            return set(names)
    raise OutFolderError(f"{path} is there, and is not a list of files that warmpath wrote")


def _is_there(path: Path, *, is_ours: bool) -> bool:
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    return not (is_ours and stat.S_ISREG(mode))
