"""What a server of HTTP logs of who sends it what is no HTTP."""

import logging

from aiohttp.http_exceptions import HttpProcessingError


def pass_over_what_is_no_http() -> None:
    """Have aiohttp's servers log no traceback of a client's fault: it was answered."""
    logging.getLogger("aiohttp.server").addFilter(_is_ours)


def _is_ours(record: logging.LogRecord) -> bool:
    """Whether a fault is the server's."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))
