"""The errors of a chat renderer (`prefixstore.chats.process_renderer`)."""

from warmpath.prefixstore.chats.template import TemplateError


class RendererFullError(Exception):
    """A chat is refused because too many chats, or too large ones, wait to be rendered."""


class RendererClosedError(Exception):
    """The renderer was closed."""


class BrokenTemplateError(TemplateError):
    """A template cannot be compiled: no chat can be rendered with it."""


class RenderTimeoutError(TemplateError):
    """A rendering took longer than its limit or the caller's timeout."""


class RenderCrashedError(TemplateError):
    """The process that rendered this chat has ended, or none could be started for it."""
