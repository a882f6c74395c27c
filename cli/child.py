"""Binds a child process to its parent: it gets SIGTERM when the parent ends, even by SIGKILL.

Linux only; elsewhere the children of a parent that is killed go on. A small program asks the kernel for
that signal and becomes the child, whose id it keeps. Python's `preexec_fn` could ask, too, but may hang
where the parent has threads.
"""

import os
import sys
from collections.abc import Sequence

BIND = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
"""The program. A parent that has ended by then sends no signal any more: its child does not begin."""


def bound(words: Sequence[str]) -> list[str]:
    """Return the command line that runs another, with the path of a program, bound to this process.

    The thread that starts it must live as long as the process: its end counts as the parent's.
    """
    if sys.platform != "linux":
        return [*words]
    return [sys.executable, "-ISc", BIND, str(os.getpid()), *words]
