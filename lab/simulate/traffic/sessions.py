"""Sessions for a closed loop: each request follows the answer before it, after a pause.

`docs/guides/simulate-and-verify.md` describes the lines of recorded sessions: lengths, pauses and ids of
blocks. Logs and traces whose requests name their sessions make sessions, too.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated

import msgspec
from msgspec import Meta

from warmpath.lab.simulate.traffic.log_line import Tokens
from warmpath.lab.simulate.traffic.requests import LoggedRequest, chained, check_count
from warmpath.router.shadow.gateway_line import decoded

SESSION_BLOCK = 64
"""Tokens per block of recorded sessions."""
SHARED = 0.75
"""The share of its tools and system prompt in which a session is like others that have the same."""
Seconds = Annotated[float, Meta(ge=0, le=1e7)]


class Turn(msgspec.Struct, rename={"prompt_tokens": "in", "output_tokens": "out"}):
    """A request of a recorded session."""

    pause: Seconds | None
    """Seconds since the answer before."""
    prompt_tokens: Annotated[int, Meta(ge=1, le=10_000_000)]
    output_tokens: Tokens
    blocks: list[tuple[Annotated[int, Meta(ge=0)], Annotated[int, Meta(ge=1, le=1_000_000)]]]
    """Ids of the prompt's blocks, as runs: the first id, and how many follow each other."""
    at: Seconds = 0.0
    """Seconds since the session's first request; where no pause lacks, sub-agents alone need them."""


class SessionLine(msgspec.Struct):
    """A line of recorded sessions: a session, or a sub-agent of one."""

    session: str
    requests: Annotated[list[Turn], Meta(min_length=1)]
    parent: str | None = None
    """Of a sub-agent: the session that started it."""
    starts: Seconds = 0.0
    """Of a sub-agent: seconds after its parent's first request."""
    model: str = ""
    tool_tokens: Tokens = 0
    system_tokens: Tokens = 0


class SessionRequests:
    """Makes requests of the lines of recorded sessions; all of a session share its blocks."""

    block_size = SESSION_BLOCK
    is_approximate = False

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(SessionLine)

    def requests(self, raw: bytes) -> Iterator[LoggedRequest]:
        """Yield the requests of a line. Raises ValueError that names the wrong field."""
        line = decoded(self._decoder, raw)
        session, agent = (line.parent, line.session) if line.parent else (line.session, "")
        alike = int(SHARED * (line.tool_tokens + line.system_tokens)) // SESSION_BLOCK
        common = f"{line.model} {line.tool_tokens} {line.system_tokens}"
        ids: list[int] = []
        keys: tuple[int, ...] = ()
        for turn in line.requests:
            before = ids
            ids = [first + step for first, count in turn.blocks for step in range(count)]
            check_count("blocks", len(ids), turn.prompt_tokens, SESSION_BLOCK)
            # Prompts are long and begin like the one before: that beginning's keys are the same objects.
            known = _alike(before, ids)
            names = [
                f"{common}/{place}" if place < alike else f"{session}/{ids[place]}"
                for place in range(known, len(ids))
            ]
            keys = keys[:known] + chained(keys[known - 1] if known else 0, names)
            yield LoggedRequest(
                line.starts + turn.at, turn.prompt_tokens, max(1, turn.output_tokens), keys,
                session, pause=turn.pause, agent=agent,
            )  # fmt: skip


def _alike(before: Sequence[int], now: Sequence[int]) -> int:
    """Return how many leading elements are equal."""
    if now[: len(before)] == before:
        return len(before)
    return next(
        (at for at, (one, other) in enumerate(zip(before, now, strict=False)) if one != other),
        min(len(before), len(now)),
    )


@dataclass(frozen=True, slots=True)
class Thread:
    """Requests of which each follows the answer before it: a session's own, or a sub-agent's."""

    requests: Sequence[LoggedRequest]
    follows: int = 0
    """Of a sub-agent: the request of the session's own thread with which its time begins."""
    delay: float = 0.0
    """Seconds from that until its first request."""


@dataclass(frozen=True, slots=True)
class Session:
    """A session: its own thread first, then those of its sub-agents, which run beside it."""

    name: str
    threads: Sequence[Thread]

    @property
    def count(self) -> int:
        return sum(len(thread.requests) for thread in self.threads)


def sessions_of(
    requests: Sequence[LoggedRequest], block_size: int, longest_pause: float
) -> list[Session]:
    """Return the sessions of requests, each of which is in the order of its requests' times.

    Pauses are cut to `longest_pause` seconds. A request without a session is one of its own. Raises
    ValueError if no request has a session.
    """
    if not any(one.session for one in requests):
        raise ValueError("session: no request has one, so that none follows another's answer")
    grouped: dict[str, dict[str, list[LoggedRequest]]] = {}
    for number, one in enumerate(requests):
        grouped.setdefault(one.session or f"alone/{number}", {}).setdefault(one.agent, []).append(
            one
        )
    return [_session(name, agents, block_size, longest_pause) for name, agents in grouped.items()]


def _session(
    name: str, agents: Mapping[str, Sequence[LoggedRequest]], size: int, longest_pause: float
) -> Session:
    own = agents.get("") or next(iter(agents.values()))
    threads = []
    for of_agent in sorted(agents.values(), key=lambda one: one is not own):
        begins = of_agent[0].at
        follows = max(0, sum(one.at <= begins for one in own) - 1)
        delay = 0.0 if of_agent is own else min(longest_pause, max(0.0, begins - own[follows].at))
        threads.append(Thread(_paused(of_agent, size, longest_pause), follows, delay))
    return Session(name, threads)


def _paused(requests: Sequence[LoggedRequest], size: int, longest: float) -> list[LoggedRequest]:
    """Give each request its pause, and its answer's keys where the next prompt has them."""
    pauses = [0.0]
    for before, one in pairwise(requests):
        gap = one.at - before.at - before.took
        pauses.append(min(longest, max(0.0, gap if one.pause is None else one.pause)))
    answers = [*(_answer(*pair, size) for pair in pairwise(requests)), ()]
    return [
        replace(one, pause=pause, answer_keys=answer)
        for one, pause, answer in zip(requests, pauses, answers, strict=True)
    ]


def _answer(one: LoggedRequest, following: LoggedRequest, size: int) -> tuple[int, ...]:
    """Return the keys of the full blocks with the answer; none if the next prompt does not go on so."""
    full = one.prompt_tokens // size
    if following.keys[:full] != one.keys[:full]:
        return ()
    return following.keys[full : (one.prompt_tokens + one.output_tokens) // size]
