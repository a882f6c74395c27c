"""Returns freed memory to the system.

glibc keeps what a thread has freed below a block that is still in use, such as an entry of a tokenizer's
cache: one long text can leave hundreds of megabytes behind.
"""

import ctypes

_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""glibc's function; None with another library."""


def give_back() -> None:
    """Return the memory that this process has freed; it takes tens of milliseconds."""
    if _TRIM is not None:
        _TRIM(0)
