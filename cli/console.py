"""The console on which commands show tables and progress, their tables, and the colours of trust."""

import sys
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb

TRUST = {"exact": "green", "degraded": "yellow", "stale": "red", "cold": "dim"}
"""The colour of each level of trust; page.css and deploy/monitoring/dashboard.json have the same."""


def new_console(*, piped_width: int | None = None, stderr: bool = False) -> Console:
    """Return a console that shows texts as they are: brackets in a pod's name are no markup.

    A pipe has no width, and 80 columns would cut tables: there it has `piped_width`, if that is given.
    """
    width = None if sys.stdout.isatty() else piped_width
    return Console(stderr=stderr, width=width, markup=False)


def new_table(columns: str, **options: Any) -> Table:
    """Return a table of the columns, which commas separate; one marked with > is aligned right."""
    table = Table(**options)
    for name in columns.split(", "):
        table.add_column(name.lstrip(">"), justify="right" if name[0] == ">" else "left")
    return table


def trust_words(trust: pb.Trust, after: str = "") -> Text:
    """Return a trust as text: its level in colour, its reason, and the text `after` it."""
    level = pb.Trust.Level.Name(trust.level).lower()
    return Text(level, TRUST.get(level, "")) + Text(f"{trust.reason and ': '}{trust.reason}{after}")
