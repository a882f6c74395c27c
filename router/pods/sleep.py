"""Whether an engine sleeps or is paused, by its page of metrics and by its pages for that.

vLLM sets `vllm:engine_sleep_state` of each engine to 0 or 1 for each state (`record_sleep_state` in
`vllm/v1/metrics/loggers.py`): `awake`; `weights_offloaded`, asleep at level 1; `discard_all`, at level
2. At level 0, which only pauses, all are 0. From level 1 on the KV cache is gone, and the event that
says so comes only with the first step after the engine woke. Any wake-up sets `awake`, even one of the
weights alone (`/wake_up?tags=weights`), after which the engine still computes nothing; `/is_sleeping`
knows that. It and `/is_paused` answer only where vLLM runs in its development mode
(`VLLM_SERVER_DEV_MODE`), as do the calls that let it sleep (`vllm/entrypoints/serve/dev`).
"""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec

from warmpath.process.bytes import UNREADABLE
from warmpath.router.load.engine_metrics import samples_of

SLEEP_STATE = b"vllm:engine_sleep_state"
PATHS = ("/is_paused", "/is_sleeping")
UNNAMED = "asleep"
"""The state of an engine of which only /is_sleeping says that it sleeps: an older vLLM."""
ASLEEP = ("weights_offloaded", "discard_all", UNNAMED)
"""The states in which the KV cache is gone."""
PAUSED = "paused"


class Answer(NamedTuple):
    """An engine's answer to a request."""

    status: int
    """The HTTP status; 0: no answer came."""
    body: bytes
    """The body; empty if it is too long."""
    error: Exception | None = None
    """Why no answer came."""


class Said(msgspec.Struct, frozen=True):
    """The answer of one of PATHS; None: it lacks the field."""

    is_paused: bool | None = None
    is_sleeping: bool | None = None


class Sleep:
    """Whether one vLLM sleeps."""

    def __init__(self) -> None:
        self.state = ""
        """The state in which it sleeps: one of ASLEEP or PAUSED; empty: it is awake."""
        self._served: set[str] = set()
        """The pages that it answered when they were last asked for."""
        self._told = ""
        """The state by the last metrics that could be read."""

    async def look(
        self, page: bytes, ask: Callable[[str], Awaitable[Answer]], *, anew: bool
    ) -> None:
        """Set `state` by a page of metrics, empty if it could not be read, and by the pages of PATHS.

        Both are asked for if `anew` or if it slept before, else those that were served last time. If no
        answer comes, the state stays. A sleeper whose metrics say `awake` may have woken only in part.
        """
        before = self.state
        if page:
            self._told = sleep_of(page)
        self.state = self._told
        asked = PATHS if anew or before else [path for path in PATHS if path in self._served]
        for path in asked:
            if self.state:
                return
            answer = await ask(path)
            said = _said(answer.body) if answer.status == 200 else Said()
            if said.is_paused is said.is_sleeping is None:
                self._served.discard(path)
                self.state = "" if answer.status else before
                continue
            self._served.add(path)
            if said.is_paused or said.is_sleeping:
                self.state = before or (PAUSED if PATHS[0] in self._served else UNNAMED)

    @property
    def has_no_cache(self) -> bool:
        return self.state in ASLEEP

    @property
    def reason(self) -> str:
        if not self.has_no_cache:
            return "it is paused: it computes no requests"
        sign = PATHS[1] if self.state == UNNAMED else f"{SLEEP_STATE.decode()}: {self.state}"
        return f"it sleeps ({sign}), and its cache is gone"


def _said(body: bytes) -> Said:
    try:
        return msgspec.json.decode(body, type=Said)
    except UNREADABLE:
        return Said()


def sleep_of(page: bytes) -> str:
    """Return the first state of `ASLEEP` that a page's engine is in; PAUSED if one sleeps at level 0.

    The result is empty if all are awake.
    """
    values = {
        (labels.get(b"sleep_state", b"").decode(errors="replace"), value)
        for _, labels, value in samples_of(page, SLEEP_STATE + b"{")
    }
    for state in ASLEEP:
        if (state, 1.0) in values:
            return state
    return PAUSED if ("awake", 0.0) in values else ""
