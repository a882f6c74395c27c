"""The console on which commands show tables and progress."""

import sys

from rich.console import Console


def new_console(*, piped_width: int | None = None, stderr: bool = False) -> Console:
    """Return a console that shows texts as they are: brackets in a pod's name are no markup.

    A pipe has no width, and 80 columns would cut tables: there it has `piped_width`, if that is given.
    """
    width = None if sys.stdout.isatty() else piped_width
    return Console(stderr=stderr, width=width, markup=False)
