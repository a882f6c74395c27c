"""Renders chats in processes that can be killed: a template is a program that may never end.

A fixed number of processes load each template once and render one chat at a time. A process that
exceeds its time or memory, or crashes, is replaced, and only the chat that it had fails. As in the
tokenizer pool, a caller's timeout ends its wait and not the work: killing a process costs more than
letting it finish within its own limit.

Templates that are known to end (`prefixstore.chats.published`) need no process for chats of usual size.
"""

import asyncio
import contextlib
import logging
from collections import deque
from dataclasses import dataclass

import msgspec

from warmpath.prefixstore.chats.chat import Chat, ModelTemplate, TemplateTraits
from warmpath.prefixstore.chats.jinja_template import TemplateError
from warmpath.prefixstore.chats.published import PublishedTemplate
from warmpath.prefixstore.chats.render_process import Render, Try
from warmpath.prefixstore.chats.render_worker import (
    RenderCrashedError,
    RenderLimits,
    RenderTimeoutError,
    RenderWorker,
)
from warmpath.prefixstore.workers import ClosedError, Waiting

log = logging.getLogger(__name__)


class BrokenTemplateError(TemplateError):
    """A template cannot be compiled: no chat can be rendered with it."""


@dataclass(eq=False, slots=True)
class _Registered:
    """A template under its id, until another one is registered there."""

    id: str
    template: ModelTemplate
    published: PublishedTemplate | None
    """The compiled template, if this process may render with it."""
    broken: str = ""
    """Why it could not be compiled; it is then sent to no process again."""
    traits: TemplateTraits | None = None
    at_work: int = 0
    """Number of processes that render with it."""


@dataclass(eq=False, frozen=True, slots=True)
class _Job:
    of: _Registered
    request: bytes
    done: asyncio.Future[str]


class ProcessRenderer:
    """Renders chats in `workers` processes. In one event loop: `start`, `render`, at last `close`."""

    def __init__(self, *, workers: int, limits: RenderLimits) -> None:
        self.rendered = 0
        self.replaced = 0
        """Processes that were killed or crashed."""
        self.waiting = Waiting(
            "chats", "to be rendered", most=limits.max_waiting, most_bytes=limits.max_waiting_bytes
        )
        self._templates: dict[str, _Registered] = {}
        self._limits = limits
        self._count = workers
        self._workers: dict[int, RenderWorker] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._jobs: deque[_Job] = deque()
        self._changed = asyncio.Event()
        self._closed = False

    def register(
        self, template_id: str, template: ModelTemplate, published: PublishedTemplate | None = None
    ) -> None:
        """Register a template, also in place of another; `start` or a chat finds out if it is broken.

        `published` is the same template, for chats that this process renders.
        """
        self._templates[template_id] = _Registered(template_id, template, published)

    def knows(self, template_id: str) -> bool:
        return template_id in self._templates

    async def start(self) -> None:
        """Start all processes together and compile the registered templates.

        With no template registered, the first chats start the processes. Broken templates are logged.
        Raises OSError or TemplateError if a process cannot be started.
        """
        slots = range(self._count if self._templates else 0)
        started = await asyncio.gather(*map(self._warm, slots), return_exceptions=True)
        for error in started:
            if error is not None:
                await self.close()
                raise error
        self._tasks = [asyncio.create_task(self._serve(slot)) for slot in range(self._count)]

    async def _warm(self, slot: int) -> None:
        # More templates may be registered while these are being loaded.
        for template in list(self._templates.values()):
            worker = await self._worker(slot)
            try:
                await self._load(worker, template)
            except TemplateError as error:
                if isinstance(error, RenderCrashedError) and worker.calls == 1:
                    raise
                if _leaves_unknown(error):
                    await self._stop(slot)
        await self._worker(slot)

    def render_at_once(self, template_id: str, chat: Chat) -> str | None:
        """Return a chat's text; None if a process has to render it, which `render` arranges.

        Raises TemplateError for a chat that the template refuses, and KeyError for an unknown template.
        """
        found = self._templates[template_id].published
        if found is None:
            return None
        return self._at_once(found, chat, len(_encoded(template_id, chat)))

    def _at_once(self, template: PublishedTemplate, chat: Chat, size: int) -> str | None:
        """Return the text of a chat of `size` bytes; None if a process has to render it."""
        if self._closed or not template.takes(chat, size):
            return None
        text = template.render(chat)
        self.rendered += 1
        return text

    async def render(self, template_id: str, chat: Chat, timeout: float | None) -> str:
        """Return a chat's text, waiting at most `timeout` seconds.

        Raises TemplateError and its subclasses, FullError, ClosedError, and KeyError for an unknown
        template.
        """
        found, request = self._templates[template_id], _encoded(template_id, chat)
        if found.published is not None:
            text = self._at_once(found.published, chat, len(request))
            if text is not None:
                return text
        return await self._answered(found, request, timeout)

    async def traits(self, template_id: str, timeout: float | None) -> TemplateTraits:
        """Return a template's traits, waiting at most `timeout` seconds. Raises the errors of `render`.

        They are found out once for each registration.
        """
        found = self._templates[template_id]
        if found.traits is None:
            request = msgspec.msgpack.encode(Try(template_id))
            answer = await self._answered(found, request, timeout)
            found.traits = msgspec.json.decode(answer, type=TemplateTraits)
        return found.traits

    async def _answered(self, template: _Registered, request: bytes, timeout: float | None) -> str:
        if self._closed:
            raise ClosedError("the renderer is closed")
        self.waiting.enter(len(request))
        job = _Job(template, request, asyncio.get_running_loop().create_future())
        self._jobs.append(job)
        self._changed.set()
        try:
            # Unlike `asyncio.timeout` this needs no task.
            await asyncio.wait((job.done,), timeout=timeout)
            if job.done.done():
                return job.done.result()
            raise RenderTimeoutError("the chat was not rendered in time")
        finally:
            # Without its caller the job is skipped, or finishes if it has begun.
            job.done.cancel()

    async def _next(self) -> _Job:
        """Return the longest-waiting chat whose template may use another process.

        With several templates and processes no template may use all processes, so a template that
        hangs never blocks the chats of other models.
        """
        while True:
            most = max(1, self._count - 1) if len(self._templates) > 1 else self._count
            for job in self._jobs:
                if job.of.at_work < most:
                    self._jobs.remove(job)
                    self.waiting.leave(len(job.request))
                    return job
            self._changed.clear()
            await self._changed.wait()

    async def _serve(self, slot: int) -> None:
        while True:
            job = await self._next()
            if job.done.done():
                continue
            job.of.at_work += 1
            try:
                worker = await self._worker(slot)
                await self._load(worker, job.of)
                text = await worker.call(job.request, self._limits.seconds)
            except Exception as error:  # noqa: BLE001  the job's caller gets it
                _fail(job, error)
                if _leaves_unknown(error):
                    # Now, so that the next chat need not wait for a start.
                    await self._stop(slot)
                    # If the start fails, the next chat tries again and gets the error.
                    with contextlib.suppress(TemplateError):
                        await self._worker(slot)
            except asyncio.CancelledError:
                _fail(job, ClosedError("the renderer was closed"))
                raise
            else:
                self.rendered += 1
                if not job.done.done():
                    job.done.set_result(text)
            finally:
                job.of.at_work -= 1
                self._changed.set()

    async def _load(self, worker: RenderWorker, template: _Registered) -> None:
        if template.broken:
            raise BrokenTemplateError(template.broken)
        try:
            await worker.load(template.id, template.template)
        except RenderCrashedError:
            raise  # the template need not be at fault
        except TemplateError as error:
            # Several processes may load it at once; one of them logs it.
            if not template.broken:
                log.error("model %r: %s", template.id, error)  # noqa: TRY400  the text suffices
            template.broken = str(error)
            raise BrokenTemplateError(str(error)) from error

    async def _worker(self, slot: int) -> RenderWorker:
        """Return the slot's process; start one if there is none that runs."""
        worker = self._workers.get(slot)
        if worker is None or worker.process.poll() is not None:
            await self._stop(slot)
            try:
                worker = self._workers[slot] = await RenderWorker.start(self._limits)
            except OSError as error:
                raise RenderCrashedError(f"no process to render in: {error}") from error
        return worker

    async def _stop(self, slot: int) -> None:
        worker = self._workers.get(slot)
        if worker is not None:
            # Removed only once it has ended: if this is cancelled, `close` still finds it.
            await worker.stop()
            del self._workers[slot]
            self.replaced += 1
            log.warning("a process that renders chats was replaced")

    async def close(self) -> None:
        """Refuse new chats, kill all processes, and fail the chats that are rendered or waiting."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for job in self._jobs:
            _fail(job, ClosedError("the renderer was closed"))
        self._jobs.clear()
        await asyncio.gather(*(worker.stop() for worker in self._workers.values()))
        self._workers.clear()


def _encoded(template_id: str, chat: Chat) -> bytes:
    try:
        return msgspec.msgpack.encode(Render(template_id, chat))
    except OverflowError as error:
        raise TemplateError(
            "the chat holds an integer beyond 64 bits, which is not supported"
        ) from error
    except (ValueError, RecursionError) as error:
        raise TemplateError(f"the chat cannot be encoded: {error}") from error


def _fail(job: _Job, error: Exception) -> None:
    if not job.done.done():
        job.done.set_exception(error)


def _leaves_unknown(error: Exception) -> bool:
    """Return whether a process must be replaced after an error; not after a template's refusal."""
    cause = error.__cause__ if isinstance(error, BrokenTemplateError) else error
    return cause is not None and type(cause) is not TemplateError
