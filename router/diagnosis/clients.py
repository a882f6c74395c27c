"""Clients: what caches save each, and which change prompts so early that caches are of no use to them.

An engine finds a prompt's blocks only up to the first difference. A session's prompt repeats the earlier
one and goes on; one with a time or a counter in its system prompt repeats all but a few tokens, and
misses the cache all the same. A prompt is compared with the earlier ones of its session: their keys show
for how long both are alike, and samples of their tokens whether the rest is there again.
"""

import math
import re
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import median_low

import msgspec

from warmpath.indexer.keys.key import TOKEN_BYTES, WORD_BYTES, common_words
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.diagnosis.place import place_of
from warmpath.router.match.forms import BlockForm
from warmpath.router.pick.pick import Pick
from warmpath.router.pick.weigh import Ask, Choice

FADING = 0.95
"""Each comparison multiplies the weights of earlier ones by this: 14 leave half a weight."""
FEW = 8
"""Least weight of a client's comparisons for a finding."""
MOSTLY = 0.5
"""Share of spoiled comparisons above which a client spoils its cache."""
LOST = 0.1
"""Share of a prompt's tokens above which their loss spoils it: marks that clients move near its end, and
reasoning that templates leave out, cost less."""

MOST_CLIENTS = 64
OTHERS = ("other", "other", "other")
"""The model, name and tenant of all clients beyond MOST_CLIENTS."""
IDLE_SECONDS = 3600.0
"""Seconds after whose last pick a client makes room for another one."""
LEAST_TOKENS, MOST_TOKENS = 128, 1 << 18
"""Tokens of a prompt that is compared: the search in a longer one would take milliseconds."""
MOST_BODY_BYTES = 2 << 20
"""Bytes of a body above which the place of a change is not looked for."""
MOST_BYTES = 1 << 20
"""Bytes of the earlier prompts that are kept of a client: the least recently used session goes first."""
MOST_LINES = 4
"""Earlier prompts that are kept of a session: it has subagents, or several sessions have no name."""
LINE_BYTES = 1024
"""Bytes of an earlier prompt beside its keys."""
SAMPLES, SAMPLE_TOKENS = 8, 16
TAIL_BYTES = 2 * WORD_BYTES
"""Keys at a prompt's end that may change: its last tokens ask for an answer."""

FIRST, PERIOD, BURST = 64, 512, 16
"""A client's FIRST prompts are compared, and then BURST of each PERIOD."""
PATIENCE = 32
"""A client's picks after which a body is given up: its session has not gone on."""


PRODUCT = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")
"""A product's name (RFC 9110, 10.1.5), as far as it is kept."""


@lru_cache(256)
def product(agent: str) -> str:
    """Return the product that a User-Agent begins with, without its version; empty if there is none."""
    found = PRODUCT.match(agent)
    return found[0] if found else ""


class Line(msgspec.Struct, eq=False):
    """An earlier prompt."""

    keys: bytes
    """The packed keys of its blocks but for the last ones."""
    tokens: int
    samples: Sequence[tuple[int, bytes]]
    """Packed tokens at some places, each with its first token's index."""


class Awaited(msgspec.Struct, eq=False):
    """The body of an earlier prompt, which the next prompt of its session is compared with."""

    line: Line
    message: pb.Prompt
    picks: int


@dataclass(slots=True, kw_only=True)
class TokenCounts:
    """Sums over picks, of some pod and model, or of some client (docs/reference/picks.md)."""

    requests: int = 0
    prompt_tokens: int = 0
    available_tokens: int = 0
    captured_tokens: int = 0
    average_tokens: int = 0
    reported_requests: int = 0
    """Requests whose report has the engine's cached tokens; the next three counters are of these."""
    reported_prompt_tokens: int = 0
    predicted_tokens: int = 0
    delivered_tokens: int = 0


@dataclass(slots=True, eq=False)
class Client(TokenCounts):
    """The prompts of one client, tenant and model. Counts of comparisons but `*_tokens` are faded."""

    model: str
    name: str
    tenant: str
    picks: int = 0
    saved_seconds: float = 0.0
    """Predicted seconds of prefill that `captured_tokens` saved."""
    compared_tokens: int = 0
    """Tokens of the prompts that were compared with an earlier one of their session."""
    spoiled_tokens: int = 0
    """Tokens in `compared_tokens` that were there before, and behind a change."""
    weight: float = 0.0
    spoiled: float = 0.0
    tokens: float = 0.0
    lost: float = 0.0
    alike: deque[int] = field(default_factory=lambda: deque(maxlen=16))
    """The tokens before the change in the last spoiled prompts."""
    place: str = ""
    """The place of the change that `placed_at` tokens precede, in words; empty: not known."""
    placed_at: int = -1
    located: int = 0
    """`picks` when the place was found."""
    sessions: OrderedDict[tuple[str, str, BlockForm], list[Line]] = field(
        default_factory=OrderedDict
    )
    """The earlier prompts, newest last, by session, adapter and form of block."""
    held_bytes: int = 0
    awaited: Awaited | None = None
    used: float = 0.0
    """When it was picked for last."""

    @property
    def spoils(self) -> bool:
        """Whether most of the last prompts were like the earlier one only up to an early change."""
        is_costly = self.lost > LOST * self.tokens
        return self.weight >= FEW and self.spoiled > MOSTLY * self.weight and is_costly

    @property
    def alike_tokens(self) -> int:
        """The usual number of tokens before the change."""
        return median_low(self.alike) if self.alike else 0

    def compare(self, ask: Ask, form: BlockForm, keys: bytes) -> None:
        """Compare a prompt with the earlier ones of its session, and keep it as the latest one."""
        ids, size = ask.ids, form[0]
        tokens = len(ids) // TOKEN_BYTES
        if (
            not LEAST_TOKENS <= tokens <= MOST_TOKENS
            or not TAIL_BYTES < len(keys) < MOST_BYTES // 2
        ):
            return
        name = (ask.session, ask.wanted.lora, form)
        lines = self.sessions.setdefault(name, [])
        self.sessions.move_to_end(name)
        line = Line(
            keys[:-TAIL_BYTES],
            tokens,
            [
                (at, ids[TOKEN_BYTES * at : TOKEN_BYTES * (at + SAMPLE_TOKENS)])
                for at in range(0, tokens - SAMPLE_TOKENS, tokens // SAMPLES)
            ],
        )
        before, alike = _before(lines, keys, ids, size)
        if before is not None:
            most = min(before.tokens, tokens)
            if self._count(most, max(0, most - alike)):
                self._locate(before, line, alike, size, ask.message)
            self._drop(lines, before)
        elif len(lines) == MOST_LINES:
            self._drop(lines, lines[0])
        lines.append(line)
        self.held_bytes += len(line.keys) + LINE_BYTES
        while self.held_bytes > MOST_BYTES:
            oldest = next(iter(self.sessions.values()))
            if oldest:
                self._drop(oldest, oldest[0])
            else:
                self.sessions.popitem(last=False)

    def _count(self, tokens: int, lost: int) -> bool:
        """Count a comparison; return whether the change has spoiled the prompt."""
        is_spoiled = lost > LOST * tokens
        self.compared_tokens += tokens
        self.spoiled_tokens += lost
        self.weight = self.weight * FADING + 1
        self.spoiled = self.spoiled * FADING + is_spoiled
        self.tokens = self.tokens * FADING + tokens
        self.lost = self.lost * FADING + lost
        return is_spoiled

    def _locate(
        self, before: Line, line: Line, alike: int, size: int, message: pb.Prompt | None
    ) -> None:
        """Find the place of a change, if the body before it is kept; else keep this one if need be."""
        self.alike.append(alike)
        if message is None or message.ByteSize() > MOST_BODY_BYTES:
            return
        awaited = self.awaited
        if awaited is not None and awaited.line is before:
            self.place, self.placed_at = place_of(awaited.message, message), alike
            self.awaited, self.located = None, self.picks
        elif self.placed_at >= 0 and (
            abs(alike - self.placed_at) <= size or self.picks - self.located < PERIOD
        ):
            return
        elif awaited is None or self.picks - awaited.picks > PATIENCE:
            self.awaited = Awaited(line, message, self.picks)

    def forget(self, session: str) -> None:
        """Drop the prompts of a session that ends."""
        for name in [one for one in self.sessions if one[0] == session]:
            self.held_bytes -= sum(len(one.keys) + LINE_BYTES for one in self.sessions.pop(name))

    def _drop(self, lines: list[Line], line: Line) -> None:
        lines.remove(line)
        self.held_bytes -= len(line.keys) + LINE_BYTES


def _before(lines: Sequence[Line], keys: bytes, ids: bytes, size: int) -> tuple[Line | None, int]:
    """Return the earlier prompt that this one repeats, and the tokens before a change, or else all.

    None if it repeats none of them.
    """
    tokens = len(ids) // TOKEN_BYTES
    for line in reversed(lines):
        if keys.startswith(line.keys):
            return line, tokens
    for line in reversed(lines):
        alike = size * common_words(line.keys, keys)
        rest = [sample for at, sample in line.samples if at >= alike + size]
        if not rest:
            return line, tokens
        # Two samples suffice to tell most strange prompts.
        is_near = rest[-1] in ids or rest[len(rest) // 2] in ids
        if is_near and 2 * sum(sample in ids for sample in rest) > len(rest):
            return line, alike
    return None, tokens


class Clients:
    """At most MOST_CLIENTS clients, by model, client and tenant; further ones count as OTHERS."""

    def __init__(self) -> None:
        self._clients: dict[tuple[str, str, str], Client] = {}
        self._room_at = -math.inf
        """Until then no client is known to make room."""

    def __iter__(self) -> Iterator[Client]:
        return iter([*self._clients.values()])

    def picked(self, placed: Pick, choice: Choice) -> Client:
        """Compare a pick's prompt with the earlier ones of its client, which is returned."""
        ask, client = choice.ask, self.of(placed)
        client.picks += 1
        client.used = placed.at
        is_due = client.picks <= FIRST or client.picks % PERIOD < BURST
        if ask.ends_session and ask.session:
            client.forget(ask.session)
        elif is_due and ask.ids and placed.is_whole and placed.keys:
            client.compare(ask, *next(iter(placed.keys.items())))
        return client

    def of(self, placed: Pick) -> Client:
        name = placed.model, placed.client, placed.tenant
        return self._clients.get(name) or self._enter(name, placed.at)

    def _enter(self, name: tuple[str, str, str], now: float) -> Client:
        clients = self._clients
        if len(clients) >= MOST_CLIENTS and OTHERS not in clients:
            clients[OTHERS] = Client(*OTHERS)
        if len(clients) > MOST_CLIENTS:
            if now <= self._room_at:
                return clients[OTHERS]
            idle = min(clients.keys() - {OTHERS}, key=lambda one: clients[one].used)
            self._room_at = clients[idle].used + IDLE_SECONDS
            if now <= self._room_at:
                return clients[OTHERS]
            del clients[idle]
        return clients.setdefault(name, Client(*name))
