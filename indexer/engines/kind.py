"""What is particular to a kind of engine: each engine's own file ends with its description."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from warmpath.indexer.engines.event import Batch

EVENTS, REPLAY = 5557, 5558
"""The usual ports of rank 0's events and replay, as in `EngineKind.events_option`."""
NEVER = (1 << 31,)
"""A version that no engine has: as a value of `told_from`, no version's events have the field."""
Version = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MetricNames:
    """The names of one engine's metrics."""

    prefix: bytes
    """The beginning of all names."""
    paths: tuple[str, ...]
    """Paths of the engine's metrics, the preferred one first."""
    running: bytes
    waiting: bytes
    kv_usage: tuple[bytes, ...]
    rank_label: bytes = b""
    """The label with the data-parallel rank; empty: no label has it."""


@dataclass(frozen=True, slots=True)
class Told:
    """What an engine says of its own cache and events; a value that it does not say has its default."""

    block_size: int = 0
    """How many tokens a block has; 0 where the engine does not say."""
    blocks: int = 0
    """Blocks of a rank's cache that can hold tokens; 0 where the engine does not say."""
    ranks: tuple[int, ...] = ()
    """Numbers of the data-parallel ranks, in order, counted from 0 where the engine names none."""
    caches: bool | None = None
    """Whether the engine keeps prefixes at all; None where it does not say."""
    hashes: str = ""
    """The algorithm of the engine's block hashes; empty where it does not say."""
    events: Mapping[str, Any] | None = None
    """The engine's configuration of events, empty if it sends none; None where it does not say."""


@dataclass(frozen=True, slots=True)
class EngineKind:
    """A kind of engine: its events, its metrics, its paths, and what its events omit."""

    name: str
    """The engine's name in configurations."""
    codec: Callable[[int], Callable[[bytes], Batch]]
    """Makes the decoder of one rank's batches, which raises MalformedEventError. It takes the number
    of tokens of a block, for engines whose events do not have it."""
    metrics: MetricNames
    version_path: str
    dialect: str = ""
    """The format of batches for the compiled scanner; empty: they must be decoded."""
    is_polled: bool = False
    """Whether the engine's events are fetched over HTTP, each once, without a replay."""
    title: str = ""
    """The engine's name in sentences."""
    owner: str = ""
    """The `owned_by` of the engine's models in /v1/models; empty: not known."""
    told: Callable[[bytes, Mapping[str, Any]], Told] = lambda *_: Told()
    """Reads an engine's page of metrics and the JSON of `version_path`; either may be empty."""
    events_option: str = ""
    """The option by which the engine publishes events, on the ports where warmpath looks for them."""
    caching_option: str = ""
    """The option, or the absence of one, by which the engine keeps prefixes."""
    metrics_option: str = ""
    """The way to start the engine so that it serves metrics, in words; empty: it always does."""
    can_sleep: bool = False
    """Whether the engine can be paused or put to sleep, and answers /is_paused and /is_sleeping."""
    tokenizes: bool = False
    """Whether the engine answers /tokenize."""
    omits_drafted: bool = False
    """Whether events may lack the tokens behind a block, which drafters of the EAGLE kind need."""
    finds_adapters: bool = False
    """Whether a request's model names an adapter; otherwise another field does."""
    told_from: Mapping[str, Version] = field(default_factory=dict)
    """By field of a prompt, such as `cache_salt`: the first version whose events have it."""
    is_presumed_recent: bool = False
    """Whether an engine of unknown version counts as recent enough for `told_from`."""
    faulty_before: Version = ()
    """The first version whose removals are right."""
    fault: str = ""
    """What versions before `faulty_before` do wrong; `{}` stands for the version."""

    def events_option_at(self, events: str, replay: str) -> str:
        """Return `events_option` with the ports of rank 0's endpoints, or else the usual ones."""
        ports = {str(EVENTS): events, str(REPLAY): replay}

        def given(usual: re.Match[str]) -> str:
            port = ports[usual[0]].rpartition(":")[2]
            return port if port.isdecimal() else usual[0]

        return re.sub("|".join(ports), given, self.events_option)
