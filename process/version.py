"""This process's version of warmpath, as pyproject.toml has it."""

import importlib.metadata
from functools import cache


@cache
def version() -> str:
    """Return the version that is installed; `unknown` where the sources run without being installed."""
    try:
        return importlib.metadata.version("warmpath-router")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
