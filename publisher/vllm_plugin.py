"""A vLLM plugin that starts the publisher with the engine: no second container, nothing patched.

Where warmpath is installed beside vLLM, vLLM calls `start` in each of its processes (entry-point group
`vllm.general_plugins`). It does nothing unless the environment variable `WARMPATH_PUBLISH` holds the
options of `warmpath publish`, and then only in the process of the first engine core; the publisher
follows the engine's own event socket, in a process of its own, and ends with the engine.

vLLM's registry of event publishers cannot serve: its configuration takes no names but `null` and `zmq`
(0.32, `vllm/config/kv_events.py`), so that a publisher inside the engine would mean patching it; and
what runs beside the engine's loop cannot slow it down.
"""

import multiprocessing
import os
import shlex
import subprocess
import sys

VARIABLE = "WARMPATH_PUBLISH"
FIRST_CORES = frozenset({"EngineCore", "EngineCore_0", "EngineCore_DP0"})
"""Names of the first engine core's process in the versions looked at (0.10 to 0.32)."""


def start() -> None:
    """Start the publisher, where this is the process that is to do so."""
    options = os.environ.get(VARIABLE)
    if not options or multiprocessing.current_process().name not in FIRST_CORES:
        return
    command = [sys.executable, "-m", "publisher", *shlex.split(options), "--exit-with-parent"]
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    # The options are the operator's own, as on any command line.
    subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment)  # noqa: S603
