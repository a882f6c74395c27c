"""The process that renders chats: it reads frames from standard input and answers on standard output.

`prefixstore.chats.process_renderer` starts it and sends one request at a time. It ends when its input
ends, so it does not outlive the router, and it limits its own memory and CPU time.
"""

import contextlib
import math
import os
import resource
import signal
import sys
from datetime import UTC, datetime
from typing import BinaryIO

import msgspec

from warmpath.prefixstore.chats.render_frame import (
    LENGTH_BYTES,
    Begin,
    Done,
    Load,
    Refused,
    Render,
    Reply,
    Request,
    Try,
    frame,
    request_decoder,
)
from warmpath.prefixstore.chats.template import ChatTemplate, RenderLimitError, TemplateError
from warmpath.prefixstore.chats.traits import traits_of


def main() -> None:
    """Serve until the input ends."""
    # Ctrl-C is for the router, which ends this process after the last answer.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests = sys.stdin.buffer
    # Only frames go to the pipe: standard output becomes standard error for libraries that print.
    with os.fdopen(os.dup(1), "wb") as replies:
        os.dup2(2, 1)
        with contextlib.suppress(BrokenPipeError):
            serve(requests, replies)


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer requests until the input ends."""
    templates: dict[str, ChatTemplate] = {}
    limits = Begin(max_output_bytes=0, max_memory_bytes=0, max_cpu_seconds=0)
    while (request := _read(requests)) is not None:
        if isinstance(request, Begin):
            limits = request
            _bound_memory(limits.max_memory_bytes)
        replies.write(frame(_answer(request, templates, limits)))
        replies.flush()


def _read(requests: BinaryIO) -> Request | None:
    length = int.from_bytes(requests.read(LENGTH_BYTES), "little")
    body = requests.read(length)
    # An input that ends within a frame has ended.
    return request_decoder.decode(body) if body and len(body) == length else None


def _answer(request: Request, templates: dict[str, ChatTemplate], limits: Begin) -> Reply:
    _bound_time(limits.max_cpu_seconds)
    try:
        if isinstance(request, Load):
            template = ChatTemplate(request.source, _now, limits.max_output_bytes)
            templates[request.template_id] = template
        elif isinstance(request, Render):
            return Done(templates[request.template_id].render(request.chat))
        elif isinstance(request, Try):
            traits = traits_of(templates[request.template_id])
            return Done(msgspec.json.encode(traits).decode())
    except RenderLimitError as error:
        return Refused(error.problem, error.field, limit=True)
    except TemplateError as error:
        return Refused(error.problem, error.field)
    except MemoryError:
        return Refused("the chat template needs more memory than it may take", limit=True)
    return Done()


def _now() -> datetime:
    return datetime.now(UTC).astimezone()


def _bound_memory(most: int) -> None:
    # A core file would hold prompts.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if most:
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _bound_time(seconds: float) -> None:
    """Let the kernel kill this process after `seconds` more of CPU time and up to 2 s."""
    if not seconds:
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = math.ceil(used.ru_utime + used.ru_stime + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))
