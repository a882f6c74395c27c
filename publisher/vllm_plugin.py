"""A vLLM plugin that starts the publisher with the engine: no second container, nothing patched.

Where warmpath is installed beside vLLM, vLLM calls `start` in each of its processes (entry-point group
`vllm.general_plugins`). It does nothing unless the environment variable `WARMPATH_PUBLISH` holds the
options of `warmpath publish`, and then only in the process of the first engine core. The publisher runs
in a process of its own, follows the engine's event socket, and ends with the engine. A publisher that
dies before the engine is started again.

vLLM's own registry of event publishers is not used: its configuration accepts only the names `null` and
`zmq` (0.32, `vllm/config/kv_events.py`), so a publisher inside the engine would need a patched vLLM. A
process of its own cannot slow the engine's loop down either.
"""

import logging
import multiprocessing
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from threading import Thread

# vLLM's own handlers show the messages of loggers whose name begins with `vllm`.
log = logging.getLogger("vllm.plugins.warmpath")

VARIABLE = "WARMPATH_PUBLISH"
FIRST_CORES = frozenset({"EngineCore", "EngineCore_0", "EngineCore_DP0"})
"""Names of the first engine core's process in vLLM 0.10 to 0.32."""

LEAST_PAUSE, MOST_PAUSE = 1.0, 60.0
"""Seconds before a dead publisher is started again: at first, and at most; doubled each time."""
LONG_LIFE = 60.0
"""Seconds after which a publisher counts as one that ran well: the next pause is the shortest again."""

WANTED = frozenset({0, -signal.SIGTERM, -signal.SIGINT})
"""Exit statuses of a publisher that was asked to end."""
BAD_OPTIONS = 2
"""Exit status of a publisher with wrong options, which would fail again at a second start."""


def start() -> None:
    """Start the publisher if this is the process of the first engine core."""
    options = os.environ.get(VARIABLE)
    if not options or multiprocessing.current_process().name not in FIRST_CORES:
        return
    try:
        words = shlex.split(options)
    except ValueError as error:
        # The engine serves without a publisher too; an error raised here would end the engine.
        log.error("%s cannot be read: %s; no publisher is started", VARIABLE, error)  # noqa: TRY400
        return
    command = [sys.executable, "-m", "warmpath.publisher.main", *words, "--exit-with-parent"]
    # As in `cli.main`: otherwise gRPC writes a line for each failed TLS handshake.
    environment = {"GRPC_VERBOSITY": "NONE"} | os.environ
    del environment[VARIABLE]

    def launch() -> int:
        # The options are the operator's, as on any command line.
        return subprocess.call(command, stdin=subprocess.DEVNULL, env=environment)  # noqa: S603

    # The thread ends with the engine: a daemon thread keeps no process alive.
    Thread(target=keep, args=(launch,), name="warmpath-publisher", daemon=True).start()


def keep(
    launch: Callable[[], int],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Run a publisher, again whenever it dies, until it is asked to end or refuses its options.

    `launch` runs the publisher to its end and returns the exit status.
    """
    pause = LEAST_PAUSE
    while True:
        begun = clock()
        try:
            status = launch()
        except OSError as error:
            failure = f"could not be started: {error}"
        else:
            if status in WANTED:
                return
            if status == BAD_OPTIONS:
                log.error(
                    "the publisher refuses the options in %s; it is not started again", VARIABLE
                )
                return
            failure = f"died with status {status}"
        if clock() - begun >= LONG_LIFE:
            pause = LEAST_PAUSE
        log.warning("the publisher %s; it is started again in %g s", failure, pause)
        sleep(pause)
        pause = min(2 * pause, MOST_PAUSE)
