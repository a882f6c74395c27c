"""`warmpath simworker`: vLLM workers without a GPU, one or many in a process."""

import asyncio
import json
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import zmq
import zmq.asyncio

from warmpath.lab.simworker.build_host import build_host, load_text
from warmpath.lab.simworker.engine import EngineFailedError
from warmpath.lab.simworker.host import Host
from warmpath.lab.simworker.options import Settings, parse
from warmpath.lab.simworker.server.text import TextCodec


def main(argv: Sequence[str] | None = None) -> int:
    """Serve simulated workers until SIGTERM or Ctrl-C."""
    settings = parse(argv)
    try:
        text, settings = load_text(settings)
    except (OSError, ValueError) as error:
        return _refused(error, 2)
    try:
        with asyncio.Runner(loop_factory=_new_loop) as runner:
            return runner.run(_serve(settings, text))
    except (OSError, ValueError, zmq.ZMQError) as error:
        return _refused(error, 1)
    except EngineFailedError as error:
        traceback.print_exception(error.__cause__)
        print(f"warmpath simworker: {error}", file=sys.stderr)
    return 1


def _refused(error: Exception, status: int) -> int:
    words = str(error)
    if isinstance(error, OSError) and error.filename:
        words = f"{error.filename}: {(error.strerror or '').lower()}"
    print(f"warmpath simworker: {words}", file=sys.stderr)
    return status


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # noqa: PLC0415  not on every platform
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def _serve(settings: Settings, text: TextCodec) -> int:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    context = zmq.asyncio.Context()
    hosts: list[Host] = []
    lives: list[asyncio.Task[None]] = []
    try:
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, ended.set)
        for number in range(settings.workers):
            hosts.append(build_host(settings, number, text, context))
            await hosts[-1].start()
        print(json.dumps(_ready(hosts)), flush=True)
        lives = [asyncio.create_task(host.live()) for host in hosts]
        await _until(ended, lives)
        # A second signal ends the process at once.
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(name)
        await asyncio.gather(*(host.drain(settings.drain_seconds) for host in hosts))
    finally:
        for life in lives:
            life.cancel()
        await asyncio.gather(*lives, return_exceptions=True)
        await asyncio.gather(*(host.close() for host in hosts))
        context.term()
    # If nobody asked for the end, every worker has crashed.
    return 0 if ended.is_set() else 1


def _ready(hosts: Sequence[Host]) -> dict[str, Any]:
    """Return the object of the "ready" line: the one worker's addresses, or a list of all workers'."""
    if len(hosts) == 1:
        return {"ready": True} | hosts[0].ready
    return {"ready": True, "workers": [host.ready for host in hosts]}


async def _until(ended: asyncio.Event, lives: Sequence["asyncio.Task[None]"]) -> None:
    """Wait until a signal asks for the end or all workers have crashed; raise if a worker's task fails.

    A failed task ends the process: a worker with one dead part would look healthy.
    """
    stopped = asyncio.create_task(ended.wait())
    waiting = set(lives)
    try:
        while waiting and not stopped.done():
            done, _ = await asyncio.wait((*waiting, stopped), return_when=asyncio.FIRST_COMPLETED)
            for life in waiting & done:
                life.result()
            waiting -= done
    finally:
        stopped.cancel()


if __name__ == "__main__":
    sys.exit(main())
