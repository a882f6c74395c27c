"""Renders chats in processes that can be killed: a template is a program that may never end.

A fixed number of processes load each template once and render one chat at a time. A process that
exceeds its time or memory, or crashes, is replaced, and only the chat that it had fails. As in the
tokenizer pool, a caller's timeout ends its wait and not the work: killing a process costs more than
letting it finish within its own limit.
"""

import asyncio
import contextlib
import logging
from collections import Counter, deque
from dataclasses import dataclass

import msgspec

from warmpath.prefixstore.chats.chat import Chat, ModelTemplate, TemplateTraits
from warmpath.prefixstore.chats.render_frame import Begin, Render, Try, frame
from warmpath.prefixstore.chats.render_worker import START_SECONDS, RenderWorker
from warmpath.prefixstore.chats.renderer import (
    BrokenTemplateError,
    RenderCrashedError,
    RendererClosedError,
    RendererFullError,
    RenderTimeoutError,
)
from warmpath.prefixstore.chats.template import TemplateError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """Limits of time, output, memory and waiting chats."""

    seconds: float
    """Longest time of one rendering, by the wall clock."""
    max_output_bytes: int
    """Largest rendered text, in bytes of UTF-8."""
    max_memory_bytes: int
    """Largest address space of one process."""
    max_waiting: int
    """Most chats that wait for a process."""
    max_waiting_bytes: int
    """Most bytes of waiting chats."""


@dataclass(slots=True)
class RenderStats:
    """Counters and gauges of a renderer, which the router exports as metrics."""

    waiting: int = 0
    waiting_bytes: int = 0
    rendered: int = 0
    refused: int = 0
    """Chats refused because too many chats, or too many bytes, were waiting."""
    replaced: int = 0
    """Processes that were killed or crashed."""


class _Job(msgspec.Struct, frozen=True):
    template_id: str
    template: ModelTemplate
    request: bytes
    done: asyncio.Future[str]


class ProcessRenderer:
    """A renderer in processes. Use from one event loop: `start`, then `render`, finally `close`."""

    def __init__(self, *, workers: int, limits: RenderLimits) -> None:
        self.stats = RenderStats()
        self._templates: dict[str, ModelTemplate] = {}
        self._broken: dict[str, tuple[ModelTemplate, str]] = {}
        """Templates that could not be compiled, and why; none is sent to a process again."""
        self._tried: dict[str, tuple[ModelTemplate, TemplateTraits]] = {}
        self._limits = limits
        self._begin = Begin(limits.max_output_bytes, limits.max_memory_bytes, limits.seconds)
        self._count = workers
        self._workers: dict[int, RenderWorker] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._jobs: deque[_Job] = deque()
        self._at_work: Counter[str] = Counter()
        """Number of processes that are rendering with each template, by its id."""
        self._changed = asyncio.Event()
        self._closed = False

    def register(self, template_id: str, template: ModelTemplate) -> None:
        """Register a template. `start`, or the first chat, finds out whether it is broken."""
        self._templates[template_id] = template

    def knows(self, template_id: str) -> bool:
        """Return whether a template is registered under this id."""
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
        worker = self._workers[slot] = await RenderWorker.start(self._begin)
        # More templates may be registered while these are being loaded.
        for name, template in list(self._templates.items()):
            try:
                await self._load(worker, name, template)
            except TemplateError as error:
                if _leaves_unknown(error):
                    await worker.stop()
                    worker = self._workers[slot] = await RenderWorker.start(self._begin)

    async def render(self, template_id: str, chat: Chat, timeout: float | None) -> str:
        """Return a chat's text, waiting at most `timeout` seconds.

        Raises TemplateError and its subclasses, RendererFullError, RendererClosedError, and KeyError
        for an unknown template.
        """
        return await self._answered(template_id, _request(template_id, chat), timeout)

    async def traits(self, template_id: str, timeout: float | None) -> TemplateTraits:
        """Return a template's traits, waiting at most `timeout` seconds. Raises the errors of `render`.

        They are found out once for each registration.
        """
        template = self._templates[template_id]
        tried = self._tried.get(template_id)
        if tried and tried[0] is template:
            return tried[1]
        answer = await self._answered(template_id, frame(Try(template_id)), timeout)
        traits = msgspec.json.decode(answer, type=TemplateTraits)
        self._tried[template_id] = template, traits
        return traits

    async def _answered(self, template_id: str, request: bytes, timeout: float | None) -> str:
        if self._closed:
            raise RendererClosedError("the renderer is closed")
        job = self._queue(template_id, self._templates[template_id], request)
        timer: asyncio.TimerHandle | None = None
        if timeout is not None:
            late = RenderTimeoutError("the chat was not rendered in time")
            timer = asyncio.get_running_loop().call_later(timeout, self._fail, job, late)
        try:
            return await job.done
        finally:
            # The queue skips a job without a caller; a rendering that has begun may finish.
            job.done.cancel()
            if timer is not None:
                timer.cancel()

    def _queue(self, template_id: str, template: ModelTemplate, request: bytes) -> _Job:
        stats, limits = self.stats, self._limits
        if (
            stats.waiting >= limits.max_waiting
            or stats.waiting_bytes + len(request) > limits.max_waiting_bytes
        ):
            stats.refused += 1
            raise RendererFullError(
                f"{stats.waiting} chats of {stats.waiting_bytes} bytes wait to be rendered; "
                f"at most {limits.max_waiting} may, and limits.max-queued-bytes is "
                f"{limits.max_waiting_bytes}"
            )
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        job = _Job(template_id, template, request, done)
        stats.waiting += 1
        stats.waiting_bytes += len(request)
        self._jobs.append(job)
        self._changed.set()
        return job

    async def _next(self) -> _Job:
        """Return the longest-waiting chat whose template may use another process.

        With several templates and processes no template may use all processes, so a template that
        hangs never blocks the chats of other models.
        """
        while True:
            most = max(1, self._count - 1) if len(self._templates) > 1 else self._count
            for job in self._jobs:
                if self._at_work[job.template_id] < most:
                    self._jobs.remove(job)
                    return job
            self._changed.clear()
            await self._changed.wait()

    async def _serve(self, slot: int) -> None:
        while True:
            job = await self._next()
            self.stats.waiting -= 1
            self.stats.waiting_bytes -= len(job.request)
            # The chat's caller has timed out or was cancelled.
            if job.done.done():
                continue
            self._at_work[job.template_id] += 1
            try:
                worker = await self._worker(slot)
                await self._load(worker, job.template_id, job.template)
                text = await worker.call(job.request, self._limits.seconds)
            except Exception as error:  # noqa: BLE001  the job's caller gets it
                self._fail(job, error)
                if _leaves_unknown(error):
                    await self._replace(slot)
            except asyncio.CancelledError:
                self._fail(job, RendererClosedError("the renderer was closed"))
                raise
            else:
                self.stats.rendered += 1
                if not job.done.done():
                    job.done.set_result(text)
            finally:
                self._at_work[job.template_id] -= 1
                self._changed.set()

    async def _load(self, worker: RenderWorker, template_id: str, template: ModelTemplate) -> None:
        broken = self._broken.get(template_id)
        if broken and broken[0] is template:
            raise BrokenTemplateError(broken[1])
        try:
            # The process's own limit of CPU time ends an endless compilation: by the wall clock a busy
            # machine would make a good template look broken for ever.
            await worker.load(template_id, template, START_SECONDS)
        except RenderCrashedError:
            raise  # the template need not be at fault
        except TemplateError as error:
            # Several processes may load it at once; one of them logs it.
            if self._broken.get(template_id, (None, ""))[0] is not template:
                log.error("model %r: %s", template_id, error)  # noqa: TRY400  the text suffices
            self._broken[template_id] = template, str(error)
            raise BrokenTemplateError(str(error)) from error

    async def _worker(self, slot: int) -> RenderWorker:
        worker = self._workers.get(slot)
        if worker is None or not worker.alive:
            await self._stop(slot)
            try:
                worker = self._workers[slot] = await RenderWorker.start(self._begin)
            except (OSError, TemplateError) as error:
                raise RenderCrashedError(f"no process to render in: {error}") from error
        return worker

    async def _replace(self, slot: int) -> None:
        """Replace the slot's process now, so that the next chat need not wait for a start."""
        await self._stop(slot)
        # If the start fails, the next chat tries again and gets the error.
        with contextlib.suppress(TemplateError):
            await self._worker(slot)

    async def _stop(self, slot: int) -> None:
        worker = self._workers.get(slot)
        if worker is not None:
            # Removed only once it has ended: if this is cancelled, `close` still finds it.
            await worker.stop()
            del self._workers[slot]
            self.stats.replaced += 1
            log.warning("a process that renders chats was replaced")

    @staticmethod
    def _fail(job: _Job, error: Exception) -> None:
        if not job.done.done():
            job.done.set_exception(error)

    async def close(self) -> None:
        """Refuse new chats, kill all processes, and fail the chats that are rendered or waiting."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for job in self._jobs:
            self._fail(job, RendererClosedError("the renderer was closed"))
        self._jobs.clear()
        await asyncio.gather(*(worker.stop() for worker in self._workers.values()))
        self._workers.clear()


def _leaves_unknown(error: Exception) -> bool:
    """Return whether a process must be replaced after an error; not after a template's refusal."""
    cause = error.__cause__ if isinstance(error, BrokenTemplateError) else error
    return cause is not None and type(cause) is not TemplateError


def _request(template_id: str, chat: Chat) -> bytes:
    try:
        return frame(Render(template_id, chat))
    except OverflowError as error:
        raise TemplateError(
            "the chat holds an integer beyond 64 bits, which is not supported"
        ) from error
    except (ValueError, RecursionError) as error:
        raise TemplateError(f"the chat cannot be encoded: {error}") from error
