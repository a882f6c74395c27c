"""The process that renders chats: it reads requests from standard input and answers on standard output.

`prefixstore.chats.render_worker` starts it and sends one request at a time: `Load` for each template,
then any number of `Render` and `Try`. The process ends when its input ends, so it does not outlive the
router, and it limits its own memory and CPU time.

A frame is the length of its body (4 bytes, little-endian) and the body, a MessagePack map tagged with
its type. As each request is answered before the next, frames have no numbers.
"""

import contextlib
import math
import os
import resource
import signal
import struct
import sys
from datetime import UTC, datetime
from typing import BinaryIO

import msgspec

from warmpath.prefixstore.chats.chat import Chat, ModelTemplate
from warmpath.prefixstore.chats.jinja_template import RenderLimitError, TemplateError
from warmpath.prefixstore.chats.template import ChatTemplate
from warmpath.prefixstore.chats.traits import traits_of

HEAD = struct.Struct("<I")


class Load(msgspec.Struct, frozen=True, tag=True):
    """Asks for a template to be compiled."""

    template_id: str
    source: ModelTemplate


class Render(msgspec.Struct, frozen=True, tag=True):
    """Asks for a chat to be rendered."""

    template_id: str
    chat: Chat


class Try(msgspec.Struct, frozen=True, tag=True):
    """Asks for a template's traits."""

    template_id: str


class Done(msgspec.Struct, frozen=True, tag=True):
    """Answers a request: the rendered chat, or a template's traits in JSON; empty for `Load`."""

    text: str = ""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """Answers a request that cannot be carried out, or whose chat the template refuses."""

    problem: str
    field: str = ""
    limit: bool = False
    """Whether a limit of output or memory was reached. The process must then be replaced, as its
    heap is fragmented."""


Request = Load | Render | Try
Reply = Done | Refused

_requests = msgspec.msgpack.Decoder(Request)


def main() -> None:
    """Serve until the input ends; arguments: most bytes of output, bytes of memory, CPU seconds."""
    most_output, most_memory, most_seconds = map(float, sys.argv[1:])
    # Ctrl-C is for the router, which ends this process after the last answer.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A core file would hold prompts.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (int(most_memory), int(most_memory)))
    requests = sys.stdin.buffer
    templates: dict[str, ChatTemplate] = {}
    # Only frames go to the pipe: standard output becomes standard error for libraries that print.
    with os.fdopen(os.dup(1), "wb") as replies, contextlib.suppress(BrokenPipeError):
        os.dup2(2, 1)
        while (request := _read(requests)) is not None:
            _bound_time(most_seconds)
            body = msgspec.msgpack.encode(_answer(request, templates, int(most_output)))
            replies.write(HEAD.pack(len(body)) + body)
            replies.flush()


def _read(requests: BinaryIO) -> Request | None:
    head = requests.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    (length,) = HEAD.unpack(head)
    body = requests.read(length)
    # An input that ends within a frame has ended.
    return _requests.decode(body) if len(body) == length else None


def _answer(request: Request, templates: dict[str, ChatTemplate], most_output: int) -> Reply:
    try:
        if isinstance(request, Load):
            templates[request.template_id] = ChatTemplate(request.source, now, most_output)
            return Done()
        template = templates[request.template_id]
        if isinstance(request, Render):
            return Done(template.render(request.chat))
        return Done(msgspec.json.encode(traits_of(template)).decode())
    except RenderLimitError as error:
        return Refused(error.problem, error.field, limit=True)
    except TemplateError as error:
        return Refused(error.problem, error.field)
    except MemoryError:
        return Refused("the chat template needs more memory than it may take", limit=True)


def now() -> datetime:
    """Return the local time, which templates write."""
    return datetime.now(UTC).astimezone()


def _bound_time(seconds: float) -> None:
    """Let the kernel kill this process after `seconds` more of CPU time and up to 2 s."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = math.ceil(used.ru_utime + used.ru_stime + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))
