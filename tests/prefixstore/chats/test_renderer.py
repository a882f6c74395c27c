"""The renderer: chats as texts, and what its processes can be put through.

One file: all tests use one renderer.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import msgspec
import pytest

from warmpath.prefixstore.chats import render_worker
from warmpath.prefixstore.chats.chat import Chat, ModelTemplate, TemplateTraits
from warmpath.prefixstore.chats.jinja_template import RenderLimitError, TemplateError
from warmpath.prefixstore.chats.render_process import HEAD, Render
from warmpath.prefixstore.chats.render_worker import (
    RenderCrashedError,
    RenderLimits,
    RenderTimeoutError,
    RenderWorker,
)
from warmpath.prefixstore.chats.renderer import BrokenTemplateError, ProcessRenderer
from warmpath.prefixstore.workers import ClosedError, FullError

MIB = 1 << 20
NESTED = "{% for a in range(99999) %}{% for b in range(99999) %}%s{% endfor %}{% endfor %}"

TEMPLATES = {
    name: ModelTemplate(source, {"bos_token": "<s>"})
    for name, source in {
        "plain": "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}",
        "loops": NESTED.replace("%s", ""),
        "writes": NESTED.replace("%s", "and so on "),
        "allocates": "{% set ns = namespace(x='x') %}{% for a in range(99) %}"
        "{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "refuses": "{{ raise_exception('roles must alternate') }}",
        "recurses": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "surrogate": "{{ messages[0].tool_calls[0].function.arguments.a }}",
        "year": "{{ strftime_now('%Y') }}",
    }.items()
}
HI = Chat([{"role": "user", "content": "hi"}])
LIMITS = RenderLimits(
    seconds=30.0,
    max_output_bytes=MIB,
    max_memory_bytes=512 * MIB,
    max_waiting=100,
    max_waiting_bytes=16 * MIB,
)

Start = Callable[..., Awaitable[ProcessRenderer]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Return a function that starts process renderers, which are closed at the end."""
    started = []

    async def start(
        limits: RenderLimits = LIMITS,
        workers: int = 1,
        templates: dict[str, ModelTemplate] = TEMPLATES,
    ) -> ProcessRenderer:
        renderer = ProcessRenderer(workers=workers, limits=limits)
        for name, template in templates.items():
            renderer.register(name, template)
        started.append(renderer)
        await renderer.start()
        return renderer

    yield start
    for renderer in started:
        await renderer.close()


@pytest.fixture
async def renderer(start: Start) -> ProcessRenderer:
    return await start()


def pid(renderer: ProcessRenderer) -> int:
    return renderer._workers[0].process.pid


async def test_a_chat_is_rendered_with_the_template_of_its_id(renderer: ProcessRenderer) -> None:
    assert await renderer.render("plain", HI, None) == "<s><user>hi"
    assert await renderer.render("year", HI, None) >= "2026"


async def test_text_of_all_planes_comes_back_as_it_was(renderer: ProcessRenderer) -> None:
    text = "".join(map(chr, range(0xD7FF))) + "👩‍👩‍👧" * 1000
    chat = Chat([{"role": "user", "content": text}])
    assert await renderer.render("plain", chat, None) == f"<s><user>{text}"


CALLS = [{"function": {"name": "f", "arguments": '{"a": "\\ud800"}'}}]


@pytest.mark.parametrize(
    ("name", "chat", "error", "message"),
    [
        ("nothing", HI, KeyError, "nothing"),
        ("refuses", HI, TemplateError, "roles must alternate"),
        ("recurses", HI, TemplateError, "nests too deeply"),
        # While it is written.
        ("writes", HI, RenderLimitError, "more than 1048576 bytes"),
        ("plain", Chat([{"role": "user", "content": "é" * (MIB // 2)}]), RenderLimitError, "more than"),
        ("surrogate", Chat([{"role": "assistant", "tool_calls": CALLS}]), TemplateError, "lone surrogate"),
    ],
    ids=["unknown", "refusal", "recursion", "output", "bytes", "surrogate"],
)  # fmt: skip
async def test_what_cannot_be_rendered_is_said_and_the_next_chat_is_rendered(
    renderer: ProcessRenderer, name: str, chat: Chat, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        await renderer.render(name, chat, None)
    assert await renderer.render("plain", HI, None) == "<s><user>hi"


async def test_a_refusal_names_the_field(renderer: ProcessRenderer) -> None:
    chat = Chat([*HI.messages, {"role": "user", "content": [{"type": "file"}]}])
    with pytest.raises(TemplateError, match="file") as caught:
        await renderer.render("plain", chat, None)
    assert caught.value.field == "messages[1].content[0].type"


async def test_a_template_is_tried_out(renderer: ProcessRenderer) -> None:
    thinks = "{% if enable_thinking is false %}<think></think>{% endif %}"
    calls = "{% for m in messages %}{% for c in m.tool_calls or [] %}%s{% endfor %}{% endfor %}"
    named = calls.replace("%s", "{{ c.function.name }}{{ c.function.arguments | tojson }}")
    for source, traits in (
        ("{{ messages[0].content }}", TemplateTraits(False, False, False)),
        ("{{ messages[0].content }}" + thinks, TemplateTraits(False, True, False)),
        ("{{ reasoning_effort }}", TemplateTraits(False, True, False)),
        ("{{ raise_exception('no') }}", TemplateTraits(True, False, True)),
        ("{{ strftime_now('%Y') }}", TemplateTraits(True, False, False)),
        ("{% for m in messages if m.role == 'system' and not loop.first %}{{ raise_exception('no') }}{% endfor %}", TemplateTraits(True, False, False)),
        (named, TemplateTraits(False, False, False)),
        (calls.replace("%s", "{{ c.function | tojson }}"), TemplateTraits(False, False, True)),
        (named + calls.replace("%s", "{{ c | tojson }}"), TemplateTraits(False, False, True)),
    ):  # fmt: skip
        renderer.register("tried", ModelTemplate(source))
        assert await renderer.traits("tried", None) == traits, source
        assert await renderer.traits("tried", None) == traits
    with pytest.raises(KeyError):
        await renderer.traits("nothing", None)


async def test_of_two_templates_one_that_wants_the_system_message_first_suffices(
    renderer: ProcessRenderer,
) -> None:
    sources = {"default": "{{ messages[0].content }}", "tool_use": "{{ raise_exception('no') }}"}
    renderer.register("tried", ModelTemplate(sources))
    assert (await renderer.traits("tried", None)).wants_system_first


async def test_a_template_that_cannot_be_tried_out_harms_no_other(
    renderer: ProcessRenderer,
) -> None:
    with pytest.raises(RenderLimitError):
        await renderer.traits("writes", None)
    assert await renderer.render("plain", HI, None) == "<s><user>hi"


async def test_a_closed_renderer_takes_nothing(renderer: ProcessRenderer) -> None:
    await renderer.close()
    with pytest.raises(ClosedError):
        await renderer.render("plain", HI, None)


async def test_a_template_can_be_registered_late_and_replaced(renderer: ProcessRenderer) -> None:
    assert await renderer.render("plain", HI, None)
    renderer.register("late", ModelTemplate("one"))
    assert await renderer.render("late", HI, None) == "one"
    renderer.register("late", ModelTemplate("two"))
    assert await renderer.render("late", HI, None) == "two"


async def test_a_template_that_is_broken_is_told_from_a_chat_that_it_refuses(
    renderer: ProcessRenderer,
) -> None:
    renderer.register("broken", ModelTemplate("{% for %}"))
    renderer.register("picky", ModelTemplate("{{ raise_exception('no') }}"))
    for _ in range(2):
        with pytest.raises(BrokenTemplateError):
            await renderer.render("broken", HI, None)
        with pytest.raises(TemplateError) as refused:
            await renderer.render("picky", HI, None)
        assert not isinstance(refused.value, BrokenTemplateError)
    assert await renderer.render("plain", HI, None) == "<s><user>hi"
    assert not renderer.replaced


async def test_a_template_that_loads_slowly_is_not_taken_for_broken(start: Start) -> None:
    renderer = await start(replace(LIMITS, seconds=0.0))
    renderer.register("later", TEMPLATES["plain"])
    for _ in range(2):
        # The process may be faster than the timer.
        with contextlib.suppress(RenderTimeoutError):
            await renderer.render("later", HI, None)


async def test_an_endless_loop_is_ended_and_the_next_chat_is_rendered(start: Start) -> None:
    renderer = await start(replace(LIMITS, seconds=0.5))
    before = pid(renderer)
    with pytest.raises(RenderTimeoutError, match=r"longer than 0\.5 s"):
        await renderer.render("loops", HI, None)
    assert await renderer.render("plain", HI, None) == "<s><user>hi"
    assert pid(renderer) != before
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)
    with pytest.raises((RenderTimeoutError, RenderCrashedError)):
        await renderer.traits("loops", None)
    assert await renderer.render("plain", HI, None) == "<s><user>hi"


async def test_endless_allocation_is_ended_and_the_next_chat_is_rendered(start: Start) -> None:
    renderer = await start(replace(LIMITS, max_memory_bytes=256 * MIB))
    with pytest.raises(RenderLimitError, match="memory"):
        await renderer.render("allocates", HI, None)
    assert await renderer.render("plain", HI, None) == "<s><user>hi"


async def test_a_process_that_is_killed_fails_only_the_chat_it_had(start: Start) -> None:
    renderer = await start(workers=2)
    stuck = asyncio.create_task(renderer.render("loops", HI, None))
    assert await renderer.render("plain", HI, None) == "<s><user>hi"
    killed = [worker.process for worker in renderer._workers.values()]
    for process in killed:
        os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(RenderCrashedError, match="ended"):
        await stuck
    for process in killed:
        await asyncio.to_thread(process.wait)
    assert await renderer.render("plain", HI, None) == "<s><user>hi"


async def test_a_process_that_was_killed_while_idle_is_not_asked(renderer: ProcessRenderer) -> None:
    worker = renderer._workers[0]
    os.kill(worker.process.pid, signal.SIGKILL)
    worker.process.wait()
    assert await renderer.render("plain", HI, None) == "<s><user>hi"


@pytest.mark.parametrize(
    "garbage",
    [
        HEAD.pack(0xFFFFFFFF) + b"and more",
        HEAD.pack(4) + b"what",
        HEAD.pack(1) + b"\xc0",
        b"\x01",
        b"",
    ],
)
async def test_a_process_that_answers_garbage_is_a_crash(
    monkeypatch: pytest.MonkeyPatch, start: Start, garbage: bytes
) -> None:
    renderer = await start()
    command = f"import sys; sys.stdout.buffer.write({garbage!r})"
    monkeypatch.setattr(render_worker, "COMMAND", ("-I", "-c", command))
    os.kill(pid(renderer), signal.SIGKILL)
    with pytest.raises(RenderCrashedError):
        await renderer.render("plain", HI, None)
    monkeypatch.undo()
    assert await renderer.render("plain", HI, None) == "<s><user>hi"


def test_chats_are_rendered_on_the_event_loop_that_a_router_has() -> None:
    uvloop = pytest.importorskip("uvloop")

    async def rendered() -> str:
        renderer = ProcessRenderer(workers=1, limits=LIMITS)
        renderer.register("plain", TEMPLATES["plain"])
        await renderer.start()
        try:
            return await renderer.render("plain", HI, 60.0)
        finally:
            await renderer.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(rendered()) == "<s><user>hi"


async def test_closing_fails_what_is_rendered_and_what_waits_and_leaves_no_process(
    start: Start,
) -> None:
    renderer = await start()
    process = pid(renderer)
    running = [asyncio.create_task(renderer.render("loops", HI, None)) for _ in range(3)]
    while renderer.waiting.count != 2:
        await asyncio.sleep(0)
    await renderer.close()
    for task in running:
        with pytest.raises(ClosedError):
            await task
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


async def test_a_callers_time_ends_its_wait_and_not_the_work(renderer: ProcessRenderer) -> None:
    before = pid(renderer)
    with pytest.raises(RenderTimeoutError, match="not rendered in time"):
        await renderer.render("plain", HI, 0.0)
    assert await renderer.render("plain", HI, None) == "<s><user>hi"
    assert pid(renderer) == before


async def test_a_caller_that_goes_away_harms_nobody(renderer: ProcessRenderer) -> None:
    gone = asyncio.create_task(renderer.render("refuses", HI, None))
    await asyncio.sleep(0)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert await renderer.render("plain", HI, None) == "<s><user>hi"


async def test_what_waits_is_bounded(start: Start) -> None:
    renderer = await start(replace(LIMITS, max_waiting=2))
    waiting = [asyncio.create_task(renderer.render("loops", HI, None))]
    while len(waiting) < 3:
        await asyncio.sleep(0)
        if renderer.waiting.count == len(waiting) - 1:
            waiting.append(asyncio.create_task(renderer.render("plain", HI, None)))
    await asyncio.sleep(0)
    with pytest.raises(FullError, match="at most 2 may, and"):
        await renderer.render("plain", HI, None)
    await renderer.close()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_the_bytes_that_wait_are_bounded(start: Start) -> None:
    renderer = await start(replace(LIMITS, max_waiting_bytes=1000))
    with pytest.raises(FullError, match="max-queued-bytes is 1000"):
        await renderer.render("plain", Chat([{"role": "user", "content": "x" * 1000}]), None)


async def test_many_chats_at_once_each_get_their_own_text(start: Start) -> None:
    renderer = await start(workers=2)
    chats = [Chat([{"role": "user", "content": f"{n}" * n}]) for n in range(99)]
    texts = await asyncio.gather(*(renderer.render("plain", chat, None) for chat in chats))
    assert texts == [f"<s><user>{n}" + f"{n}" * (n - 1) if n else "<s><user>" for n in range(99)]
    assert renderer.waiting.count == renderer.waiting.bytes == 0
    assert renderer.rendered == 99


@pytest.mark.deep
@pytest.mark.parametrize(
    "source",
    ["{% for %}", {"rag": "x"}, "{{ 9 ** (9 ** 9) }}"],
    ids=["broken", "no default", "computes for ever"],
)
async def test_a_template_that_cannot_be_compiled_is_named_at_the_start_and_harms_nobody(
    start: Start, source: str | dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    templates = {"demo": ModelTemplate(source), "plain": TEMPLATES["plain"]}
    renderer = await start(replace(LIMITS, seconds=0.5), templates=templates, workers=2)
    assert caplog.text.count("model 'demo'") == 1
    replaced = renderer.replaced
    for _ in range(2):
        with pytest.raises(TemplateError, match=r"broken|default|time|memory"):
            await renderer.render("demo", HI, None)
    assert (await renderer.render("plain", HI, None)).endswith("hi")
    assert renderer.replaced == replaced


async def test_a_template_that_allocates_while_it_is_compiled_harms_nobody(start: Start) -> None:
    renderer = await start(templates={"demo": ModelTemplate("{{ 'x' * 99999999999 }}")})
    with pytest.raises(RenderLimitError, match="memory"):
        await renderer.render("demo", HI, None)


async def test_a_process_ends_when_its_renderer_is_gone() -> None:
    worker = await RenderWorker.start(LIMITS)
    worker.writer.close()
    assert await asyncio.to_thread(worker.process.wait) == 0
    await worker.stop()


@pytest.mark.deep
async def test_an_endless_loop_ends_by_itself_where_its_renderer_is_gone() -> None:
    worker = await RenderWorker.start(replace(LIMITS, seconds=0.1))
    await worker.load("loops", TEMPLATES["loops"])
    with pytest.raises(RenderTimeoutError, match="processor time"):
        await worker.call(msgspec.msgpack.encode(Render("loops", HI)), 60.0)
    assert await asyncio.to_thread(worker.process.wait) == -signal.SIGXCPU
    await worker.stop()


async def test_an_integer_beyond_64_bits_is_refused(renderer: ProcessRenderer) -> None:
    with pytest.raises(TemplateError, match="64 bits"):
        await renderer.render("plain", Chat(HI.messages, kwargs={"n": 1 << 70}), None)


async def test_a_template_that_hangs_leaves_a_process_to_the_others(start: Start) -> None:
    renderer = await start(replace(LIMITS, seconds=600), workers=2)
    stuck = [asyncio.create_task(renderer.render("loops", HI, None)) for _ in range(3)]
    for _ in range(3):
        assert await renderer.render("plain", HI, None) == "<s><user>hi"
    for task in stuck:
        task.cancel()
    await asyncio.gather(*stuck, return_exceptions=True)
