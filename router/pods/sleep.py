"""Whether an engine sleeps or is paused, by its page of metrics and by /is_paused.

vLLM sets `vllm:engine_sleep_state` of each engine to 0 or 1 for each state (`record_sleep_state` in
`vllm/v1/metrics/loggers.py`): `awake`; `weights_offloaded`, asleep at level 1; `discard_all`, at level
2. At level 0, which only pauses, all are 0. From level 1 on the KV cache is gone, and the event that
says so comes only with the first step after the engine woke. `/is_paused` answers only where vLLM runs
in its development mode (`VLLM_SERVER_DEV_MODE`; `vllm/entrypoints/serve/dev/rlhf/api_router.py`).
"""

import re

import msgspec

from indexer.unreadable import UNREADABLE
from router.load.engine_metrics import lines

SLEEP_STATE = b"vllm:engine_sleep_state{"
STATE = re.compile(rb'[^}]*\bsleep_state="(\w{1,40})"[^}]*\}[ \t]+(\S{1,40})')
ONE, ZERO = (b"1.0", b"1"), (b"0.0", b"0")
PAUSE_PATH = "/is_paused"
ASLEEP = ("weights_offloaded", "discard_all")
"""The states in which the KV cache is gone."""


class Paused(msgspec.Struct, frozen=True):
    """The answer of /is_paused."""

    is_paused: bool


def sleep_of(page: bytes) -> str:
    """Return the state in which an engine of a page sleeps, "paused" at level 0; empty: none does."""
    found = [match for line in lines(page, SLEEP_STATE) if (match := STATE.match(line))]
    values = {(match[1].decode(), match[2]) for match in found}
    for state in ASLEEP:
        if any((state, one) in values for one in ONE):
            return state
    return "paused" if any(("awake", zero) in values for zero in ZERO) else ""


def is_paused(answer: bytes) -> bool:
    """Return whether an answer of /is_paused says so."""
    try:
        return msgspec.json.decode(answer, type=Paused).is_paused
    except UNREADABLE:
        return False
