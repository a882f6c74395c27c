"""What a process does when it is the first to compile the index: it warns, and gets help."""

import logging
import os
import subprocess
import sys

from numba.core.event import Listener

from warmpath.indexer.compiled import jit

log = logging.getLogger(__name__)

HELP = """
from warmpath.indexer.compiled.array_index import ArrayIndex
from warmpath.indexer.compiled.warm_up import follow_ranks
follow_ranks(ArrayIndex(1 << 20))
"""
"""The second process's program."""
HELP_SECONDS = 120.0
"""Longest wait for the second process; this one compiles what is not on disk then."""


class FirstCompilation(Listener):
    """Logs one warning, when Numba first has to compile a function that is not on disk.

    Where there is a second processor, a second process then compiles a part (`HELP`), which this process
    loads from disk later.
    """

    def __init__(self) -> None:
        self._has_begun = False
        self._helper: subprocess.Popen[bytes] | None = None

    def on_start(self, event: object) -> None:
        del event
        if not self._has_begun:
            self._has_begun = True
            log.warning(
                "compiling the index of warmpath: once, up to a minute on a slow machine; %s",
                _where_kept(),
            )
            if jit.IS_LASTING and sys.executable and (os.cpu_count() or 1) > 1:
                self._helper = subprocess.Popen(  # noqa: S603
                    [sys.executable, "-Pc", HELP],
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )

    def on_end(self, event: object) -> None:
        pass

    def await_helper(self) -> None:
        """Wait until the second process has ended, if there is one."""
        if self._helper is not None:
            try:
                self._helper.wait(HELP_SECONDS)
            except subprocess.TimeoutExpired:
                self._helper.kill()
                self._helper.wait()


def _where_kept() -> str:
    if jit.IS_LASTING:
        return f"the code is kept in {jit.folder()}"
    return "the code is kept for this process only, unless NUMBA_CACHE_DIR names a writable folder"
