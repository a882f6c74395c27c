"""Runs a module in a Python process of its own, independent of environment and working directory."""

from pathlib import Path

ROOT = Path(__file__).absolute().parents[2]


def isolated(module: str) -> tuple[str, ...]:
    """Return the interpreter's arguments that run a module's `main` and exit with its result.

    The environment, the user's packages and the working directory are not searched for modules. The
    process runs the same version of the code as this one, even if several are installed.
    """
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {module} as m; sys.exit(m.main())"
    )
    return "-I", "-c", code
