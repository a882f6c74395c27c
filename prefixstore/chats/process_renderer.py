"""Rendering in processes that can be ended: a template is a program, and may never end by itself.

Each of a fixed number of processes is handed a template once, and renders one chat at a time.
One that takes too long, too much memory or ends is replaced, and fails only the chat it had. As in
the tokenizer pool, a caller's time bounds its own wait and not the work: ending a process costs more
than letting it finish within its limit.
"""

import asyncio
import contextlib
import logging
from collections import Counter, deque
from dataclasses import dataclass

from prefixstore.chats.chat import Chat, ModelTemplate
from prefixstore.chats.render_frame import Begin, Render, frame
from prefixstore.chats.render_worker import START_SECONDS, RenderWorker
from prefixstore.chats.renderer import (
    BrokenTemplateError,
    RenderCrashedError,
    RendererClosedError,
    RendererFullError,
    RenderTimeoutError,
)
from prefixstore.chats.template import TemplateError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """What renderings may take."""

    seconds: float
    """Of one rendering, by the wall clock."""
    max_output_bytes: int
    """Of one rendering's text, as UTF-8."""
    max_memory_bytes: int
    """Of one process's address space."""
    max_waiting: int
    """Chats that wait for a process."""
    max_waiting_bytes: int
    """Bytes of those."""


@dataclass(slots=True)
class RenderStats:
    """What is going on; plain numbers, exported by the process."""

    waiting: int = 0
    waiting_bytes: int = 0
    rendered: int = 0
    refused: int = 0
    """Chats not taken because too many waited."""
    replaced: int = 0
    """Processes that were ended, or ended."""


@dataclass(frozen=True, slots=True)
class _Job:
    template_id: str
    template: ModelTemplate
    request: bytes
    done: asyncio.Future[str]


class ProcessRenderer:
    """Renders in processes. Use from one event loop: `start`, then `render`, and `close` at the end."""

    def __init__(self, *, workers: int, limits: RenderLimits) -> None:
        self.stats = RenderStats()
        self._templates: dict[str, ModelTemplate] = {}
        self._broken: dict[str, tuple[ModelTemplate, str]] = {}
        """Templates that could not be compiled, and why: none costs a second process."""
        self._limits = limits
        self._begin = Begin(limits.max_output_bytes, limits.max_memory_bytes, limits.seconds)
        self._count = workers
        self._workers: dict[int, RenderWorker] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._jobs: deque[_Job] = deque()
        self._at_work: Counter[str] = Counter()
        """Processes that render with each template."""
        self._changed = asyncio.Event()
        self._closed = False

    def register(self, template_id: str, template: ModelTemplate) -> None:
        """Make a template known; the first chat, or `start`, tells whether it is broken."""
        self._templates[template_id] = template

    def knows(self, template_id: str) -> bool:
        """Whether a template has this id."""
        return template_id in self._templates

    async def start(self) -> None:
        """Start all processes at once, and compile the templates that are known by now.

        Where there are none, the processes start with the first chats. A template that is broken is
        logged. Raises OSError and TemplateError where there can be no process.
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
        # More may become known while these are being loaded.
        for name, template in list(self._templates.items()):
            try:
                # Here the process's own limit of its work is the one that counts.
                await self._load(worker, name, template, START_SECONDS)
            except TemplateError as error:
                if _leaves_unknown(error):
                    await worker.stop()
                    worker = self._workers[slot] = await RenderWorker.start(self._begin)

    async def render(self, template_id: str, chat: Chat, timeout: float | None) -> str:
        """Return a chat's text, waiting at most `timeout` seconds.

        Raises TemplateError and its subclasses, RendererFullError, RendererClosedError, and KeyError
        for an unknown template.
        """
        if self._closed:
            raise RendererClosedError("the renderer is closed")
        template = self._templates[template_id]
        job = self._queue(template_id, template, _request(template_id, chat))
        try:
            ready, _ = await asyncio.wait((job.done,), timeout=timeout)
            if not ready:
                raise RenderTimeoutError("the chat was not rendered in time")
            return job.done.result()
        finally:
            # Where nobody waits any more, the queue passes it over; what runs is let finish.
            job.done.cancel()

    def _queue(self, template_id: str, template: ModelTemplate, request: bytes) -> _Job:
        stats, limits = self.stats, self._limits
        if (
            stats.waiting >= limits.max_waiting
            or stats.waiting_bytes + len(request) > limits.max_waiting_bytes
        ):
            stats.refused += 1
            raise RendererFullError(
                f"{stats.waiting} chats of {stats.waiting_bytes} bytes wait to be rendered; "
                f"limits.max-queued-prompts is {limits.max_waiting}, "
                f"limits.max-queued-bytes {limits.max_waiting_bytes}"
            )
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        job = _Job(template_id, template, request, done)
        stats.waiting += 1
        stats.waiting_bytes += len(request)
        self._jobs.append(job)
        self._changed.set()
        return job

    async def _next(self) -> _Job:
        """Return the chat that waited longest, of a template that has not all processes but one.

        So a template that hangs does not keep the chats of other models from being rendered.
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
            # Its caller may have gone.
            if job.done.done():
                continue
            self._at_work[job.template_id] += 1
            try:
                worker = await self._worker(slot)
                await self._load(worker, job.template_id, job.template, self._limits.seconds)
                text = await worker.call(job.request, self._limits.seconds)
            except Exception as error:  # noqa: BLE001  it is the caller's, who awaits it
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

    async def _load(
        self, worker: RenderWorker, template_id: str, template: ModelTemplate, seconds: float
    ) -> None:
        """Let a process have a template; remember one that cannot be compiled."""
        broken = self._broken.get(template_id)
        if broken and broken[0] is template:
            raise BrokenTemplateError(broken[1])
        try:
            await worker.load(template_id, template, seconds)
        except RenderCrashedError:
            raise  # which may be nobody's fault
        except TemplateError as error:
            # Several processes may be given it together.
            if self._broken.get(template_id, (None, ""))[0] is not template:
                log.error("model %r: %s", template_id, error)  # noqa: TRY400  says all
            self._broken[template_id] = template, str(error)
            raise BrokenTemplateError(str(error)) from error

    async def _worker(self, slot: int) -> RenderWorker:
        """Return a process that runs."""
        worker = self._workers.get(slot)
        if worker is None or not worker.alive:
            await self._stop(slot)
            try:
                worker = self._workers[slot] = await RenderWorker.start(self._begin)
            except (OSError, TemplateError) as error:
                raise RenderCrashedError(f"no process to render in: {error}") from error
        return worker

    async def _replace(self, slot: int) -> None:
        """Start a new process now, so that the next chat need not wait for it."""
        await self._stop(slot)
        # What cannot be started now is tried again with the next chat, which fails by name.
        with contextlib.suppress(TemplateError):
            await self._worker(slot)

    async def _stop(self, slot: int) -> None:
        worker = self._workers.get(slot)
        if worker is not None:
            # Forgotten only when it has ended: `close` ends what is left where this is cancelled.
            await worker.stop()
            del self._workers[slot]
            self.stats.replaced += 1
            log.warning("a process that renders chats was replaced")

    @staticmethod
    def _fail(job: _Job, error: Exception) -> None:
        if not job.done.done():
            job.done.set_exception(error)

    async def close(self) -> None:
        """Take nothing more, end all processes, and fail what was being rendered or waited."""
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
    """Whether an error leaves a process in no known state: not so a plain refusal, an answer."""
    said = error.__cause__ if isinstance(error, BrokenTemplateError) else error
    return said is not None and type(said) is not TemplateError


def _request(template_id: str, chat: Chat) -> bytes:
    """Return a chat's frame. Raises TemplateError for one that has none."""
    try:
        return frame(Render(template_id, chat))
    except OverflowError as error:
        raise TemplateError(
            "a number is an integer beyond 64 bits, which is not supported"
        ) from error
    except (ValueError, RecursionError) as error:
        raise TemplateError(f"the chat cannot be handed on: {error}") from error
