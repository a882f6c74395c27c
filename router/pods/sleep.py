"""Whether an engine sleeps or is paused, by its page of metrics and by its pages for that.

vLLM sets `vllm:engine_sleep_state` of each engine to 0 or 1 for each state (`record_sleep_state` in
`vllm/v1/metrics/loggers.py`): `awake`; `weights_offloaded`, asleep at level 1; `discard_all`, at level
2. At level 0, which only pauses, all are 0. From level 1 on the KV cache is gone, and the event that
says so comes only with the first step after the engine woke. Any wake-up sets `awake`, even one of the
weights alone (`/wake_up?tags=weights`), after which the engine still computes nothing; `/is_sleeping`
knows that. It and `/is_paused` answer only where vLLM runs in its development mode
(`VLLM_SERVER_DEV_MODE`), as do the calls that let it sleep (`vllm/entrypoints/serve/dev`).
"""

from collections.abc import Collection

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


class Answer(msgspec.Struct, frozen=True):
    """The answer of one of PATHS."""

    is_paused: bool | None = None
    is_sleeping: bool | None = None


class Sleep:
    """Whether one vLLM sleeps. A probe lets it `read` the metrics, then `hear` the `wanted` pages."""

    def __init__(self) -> None:
        self.state = ""
        """The state in which it sleeps: one of ASLEEP or PAUSED; empty: it is awake."""
        self._served: set[str] = set()
        """The pages that it answered when they were last asked for."""
        self._before = ""
        self._told = ""
        """The state by the last metrics that could be read."""

    def read(self, page: bytes) -> None:
        """Take a page of metrics; an empty one could not be read: what the last one said holds."""
        self._before = self.state
        if page:
            self._told = sleep_of(page)
        self.state = self._told

    def wanted(self, *, anew: bool) -> Collection[str]:
        """Return the pages to ask for now: all if `anew`, and while one of them may show its end."""
        if self.state:
            return ()
        return PATHS if anew or self._before else [path for path in PATHS if path in self._served]

    def hear(self, path: str, status: int, body: bytes) -> None:
        """Take the answer of a page; `status` is 0 where none came in time.

        An engine that has slept and still does has woken in part. Where no answer comes, it is believed
        to be as it was.
        """
        try:
            answer = msgspec.json.decode(body, type=Answer) if status == 200 else None
        except UNREADABLE:
            answer = None
        if answer is None or answer.is_paused is answer.is_sleeping is None:
            self._served.discard(path)
            if not status and self._before:
                self.state = self._before
            return
        self._served.add(path)
        if answer.is_paused or answer.is_sleeping:
            can_pause = PATHS[0] in self._served
            self.state = self._before or (PAUSED if can_pause else UNNAMED)

    @property
    def has_no_cache(self) -> bool:
        return self.state in ASLEEP

    @property
    def reason(self) -> str:
        if not self.has_no_cache:
            return "it is paused: it computes no requests"
        sign = PATHS[1] if self.state == UNNAMED else f"{SLEEP_STATE.decode()}: {self.state}"
        return f"it sleeps ({sign}), and its cache is gone"


def sleep_of(page: bytes) -> str:
    """Return the state in which an engine of a page sleeps, PAUSED at level 0; empty: none does."""
    values = {
        (labels.get(b"sleep_state", b"").decode(errors="replace"), value)
        for _, labels, value in samples_of(page, SLEEP_STATE + b"{")
    }
    for state in ASLEEP:
        if (state, 1.0) in values:
            return state
    return PAUSED if ("awake", 0.0) in values else ""
