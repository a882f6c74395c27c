"""Tells whether files can be written into a folder."""

import os
from pathlib import Path


def folder_problem(folder: Path) -> str:
    """Return why no file can be written into a folder; empty if files can."""
    if not folder.is_dir():
        return f"there is no folder {folder}"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"nothing can be written to the folder {folder}"
    return ""
