"""Shows an explained score: the text, its tokens, which of them were stored, and the times of steps."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from warmpath.cli.console import new_table
from warmpath.indexer.keys.key import unpack_tokens
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb

MOST_TOKENS = 400
"""The most tokens shown; --json has all."""


def explained(explanation: pb.Explanation) -> RenderableType:
    """Return the explanation that is printed above the scores."""
    ids = unpack_tokens(explanation.token_ids_packed)
    parts: list[RenderableType] = []
    if explanation.text:
        stored = explanation.stored_chars
        parts += [
            _heading(f"text: {len(explanation.text)} characters, the first {stored} known"),
            # A Text, since Rich would take square brackets of a prompt for markup.
            Text(explanation.text[:stored], "green") + Text(explanation.text[stored:]),
        ]
    shown = " ".join(map(str, ids[:MOST_TOKENS]))
    if len(ids) > MOST_TOKENS:
        shown += f" … ({len(ids) - MOST_TOKENS} more)"
    parts += [
        _heading(f"tokens: {len(ids)}, {explanation.stored_tokens} of them from the prefix store"),
        Text(shown),
        _heading(
            f"block keys: {explanation.keys}, {explanation.stored_keys} of them from the prefix store"
        ),
        _steps(explanation),
    ]
    return Group(*parts)


def _heading(text: str) -> Text:
    return Text(text, "bold")


def _steps(explanation: pb.Explanation) -> Table:
    table = new_table("step, >ms", box=None, header_style="bold")
    for step in explanation.steps:
        table.add_row(step.name, f"{step.seconds * 1e3:.3f}")
    return table
