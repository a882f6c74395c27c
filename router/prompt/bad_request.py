"""Errors that tell a caller which field of his request cannot be taken, and why."""


class BadRequestError(Exception):
    """A request cannot be taken. `field` names the wrong field, the message says its limit."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field


class NoTokenizerError(BadRequestError):
    """The request has a text or a chat, and nothing is configured that tokenises it for the model."""
