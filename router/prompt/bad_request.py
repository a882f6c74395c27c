"""Errors that tell a caller which field of the request is refused, and why."""


class BadRequestError(Exception):
    """A request is refused. `field` names the field at fault; the message has the limit, if any."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field


class NoTokenizerError(BadRequestError):
    """The request has a text or a chat, and nothing configured can tokenise it for the model."""
