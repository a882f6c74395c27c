"""Reads recordings of engines and checks them line by line.

The format is that of `warmpath record`: one JSON object a line, in the
order seen; `t` is seconds since the recording's start. A request's line is written when its answer is
complete; its `t_start` is the time at which it was sent.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

from warmpath.indexer.engines.event import MalformedEventError
from warmpath.indexer.engines.wire import within
from warmpath.indexer.keys.key import Item, pack_tokens
from warmpath.indexer.stream.replay import MOST_SEQUENCE
from warmpath.lab.local.gzipped import DAMAGED, open_gzipped
from warmpath.router.prompt.bodies.openai import reads_cache

MOST_LINE = 64 << 20
"""The most characters of a line, enough for a request of ten million tokens."""
MOST_CHARACTERS = 4 << 30
"""The most characters of a file, uncompressed; compressed it may be a thousand times smaller."""


WRONG = KeyError, TypeError, ValueError, OverflowError, AttributeError
"""The errors of a line whose fields are missing, or of another kind."""


class BadRecordingError(Exception):
    """The file is not a recording; the message has the line and the fault."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A batch of events, live (`replayed` False) or from a replay."""

    t: float
    topic: str
    sequence: int
    payload: bytes
    replayed: bool


@dataclass(frozen=True, slots=True)
class Life:
    """The engine started, became ready, or stopped."""

    t: float
    action: str


@dataclass(frozen=True, slots=True)
class ReplayEnd:
    """The end of a replay that the recorder asked for."""

    t: float


@dataclass(frozen=True, slots=True, eq=False)
class RecordedRequest:
    """One request that the engine answered, and the figures that it reported."""

    id: int
    arrived: float
    """When the request was sent; `t` is when its answer was complete."""
    t: float
    model: str
    cache_salt: str
    samples: int
    ids: bytes
    """The token ids of the prompt, as the engine reported them, packed."""
    answer: bytes
    """The token ids of the first sample, packed."""
    cached: int | None
    """The cached tokens that the engine reported; None: not reported."""
    reads_cache: bool
    items: tuple[Item, ...] = ()


Line = Frame | Life | ReplayEnd | RecordedRequest


@dataclass(slots=True)
class Recording:
    """A whole recording."""

    lines: list[Line] = field(default_factory=list)
    model: str = ""
    """The base model's name; empty: the first request's."""
    adapters: set[str] = field(default_factory=set)
    capacity: int = 0
    """Blocks of the engine's cache that requests can use; 0: not known."""
    cut_after: int = 0
    """Number of the line within which the file is cut off; 0: it is complete."""
    reports_cached: bool = False
    """Whether any answer has the number of cached tokens."""


def read_recording(path: Path) -> Recording:
    """Read a recording. Raises BadRecordingError or OSError."""
    recording = Recording()
    for number, raw in _objects(path, recording):
        if not isinstance(raw.get("kind"), str):
            raise BadRecordingError(
                f"is not a recording: line {number} is not an object with a kind"
            )
        try:
            _take(recording, raw)
        except (*WRONG, MalformedEventError) as error:
            has = ", ".join(sorted(raw))[:200]
            what = (
                f"no field {error} among {has}; is it a recording by `warmpath record`?"
                if isinstance(error, KeyError)
                else str(error)
            )
            raise BadRecordingError(f"line {number} ({raw['kind']}): {what}") from error
    if not any(isinstance(line, Frame) for line in recording.lines):
        raise BadRecordingError("it has no events")
    if not recording.reports_cached:
        raise BadRecordingError(
            "no answer says how many tokens were cached: start the engine with "
            "--enable-prompt-tokens-details"
        )
    return recording


def _objects(path: Path, recording: Recording) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the lines' objects by number; a recording that was cut off ends with its last whole line."""
    number = 0
    try:
        with TextIOWrapper(open_gzipped(path), encoding="utf-8") as lines:
            for number, line in enumerate(_bounded(lines), 1):
                try:
                    value = json.loads(line)
                except ValueError:
                    if number > 1 and not line.endswith("\n"):
                        recording.cut_after = number
                        return
                    raise
                if not isinstance(value, dict):
                    raise BadRecordingError(f"is not a recording: line {number} is not an object")
                yield number, value
    except EOFError:
        recording.cut_after = number + 1
        return
    except (UnicodeDecodeError, *DAMAGED) as error:
        raise BadRecordingError(f"is not a recording: after line {number}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise BadRecordingError(f"is not a recording: line {number} is not JSON") from error


def _bounded(file: TextIO) -> Iterator[str]:
    """Yield a file's lines. Raises BadRecordingError for a line or a file that is too long."""
    left = MOST_CHARACTERS
    while line := file.readline(MOST_LINE + 1):
        if len(line) > MOST_LINE:
            raise BadRecordingError(f"has a line of more than {MOST_LINE} characters")
        left -= len(line)
        if left < 0:
            raise BadRecordingError(f"has more than {MOST_CHARACTERS} characters, unpacked")
        yield line


def _take(recording: Recording, raw: dict[str, Any]) -> None:
    kind = raw["kind"]
    if kind in ("events", "replayed"):
        recording.lines.append(
            Frame(
                t=float(raw["t"]),
                topic=str(raw["topic"]),
                sequence=within("seq", int(raw["seq"]), 0, MOST_SEQUENCE),
                payload=bytes.fromhex(raw["payload_hex"]),
                replayed=kind == "replayed",
            )
        )
    elif kind == "replay_end":
        recording.lines.append(ReplayEnd(float(raw["t"])))
    elif kind == "engine":
        recording.lines.append(Life(float(raw["t"]), str(raw["action"])))
        _take_flags(recording, [str(flag) for flag in raw.get("flags") or ()])
    elif kind == "trace":
        recording.model = str(raw.get("model") or "")
        recording.adapters.update(map(str, raw.get("adapters") or ()))
        # One is the null block, which is never cached.
        recording.capacity = max(0, int(raw.get("num_gpu_blocks") or 0) - 1)
    elif kind == "request" and raw["status"] == 200:
        recording.lines.append(_asked(raw))
        details = (raw.get("usage") or {}).get("prompt_tokens_details")
        recording.reports_cached |= bool(details and details.get("cached_tokens") is not None)
    elif kind == "request":
        recording.lines.append(_asked({**raw, "usage": None, "prompt_token_ids": []}))


def _take_flags(recording: Recording, flags: list[str]) -> None:
    for position, flag in enumerate(flags[:-1]):
        if flag == "--served-model-name":
            recording.model = flags[position + 1]
        elif flag == "--lora-modules":
            for module in flags[position + 1 :]:
                if module.startswith("--"):
                    break
                recording.adapters.add(module.partition("=")[0])


def _asked(raw: dict[str, Any]) -> RecordedRequest:
    body, usage = raw["body"], raw.get("usage") or {}
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else usage
    for name, value in (("body", body), ("usage", usage), ("prompt_tokens_details", details)):
        if not isinstance(value, dict | None):
            raise TypeError(f"{name} is not an object")
    outputs = raw.get("outputs") or [{}]
    ids = raw.get("prompt_token_ids")
    cached = None
    if usage and ids:
        # vLLM leaves the figure out where it looked nothing up.
        cached = int((details or {}).get("cached_tokens") or 0)
    return RecordedRequest(
        id=int(raw["id"]),
        arrived=float(raw["t_start"]),
        t=float(raw["t"]),
        model=str(body.get("model", "")),
        cache_salt=str(body.get("cache_salt") or ""),
        samples=int(body.get("n") or 1),
        ids=pack_tokens(ids or ()),
        answer=pack_tokens(outputs[0].get("token_ids") or ()),
        cached=cached,
        reads_cache=reads_cache(body),
    )
