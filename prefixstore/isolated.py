"""Python in a process of its own that takes nothing from where it was started."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def isolated(module: str) -> tuple[str, ...]:
    """Return the interpreter's arguments that run a module's `main` and end with what it returns.

    Nothing of the environment, of the user or of the working directory is imported. The code is this
    process's own, also where several versions are installed.
    """
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {module} as m; sys.exit(m.main())"
    )
    return "-I", "-c", code
