"""Errors about one field of a request, which name the field and the reason."""

from collections.abc import Mapping
from typing import Self


class BadRequestError(Exception):
    """A request is refused. `field` names the field at fault; the message has the limit, if any."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem

    def renamed(self, fields: Mapping[str, str]) -> Self:
        """Return the error about the field that `fields` has in place of its own, if any."""
        return type(self)(fields.get(self.field, self.field), self.problem)


class NoTokenizerError(BadRequestError):
    """The request has a text or a chat, and nothing configured can tokenise it for the model."""
