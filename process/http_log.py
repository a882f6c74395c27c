"""Keeps malformed HTTP requests out of the log."""

import logging

from aiohttp.http_exceptions import HttpProcessingError


def ignore_malformed_http() -> None:
    """Let aiohttp's servers log no traceback for a malformed request, which has been answered."""
    logging.getLogger("aiohttp.server").addFilter(_is_ours)


def _is_ours(record: logging.LogRecord) -> bool:
    """Return whether an error is the server's and not the client's."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))
