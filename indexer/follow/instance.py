"""One engine instance as it is followed: its ranks' events, how to decode them, and its TLS."""

import ssl
from collections.abc import Callable
from dataclasses import dataclass

from warmpath.indexer.engines.event import Batch
from warmpath.indexer.engines.table import ENGINES
from warmpath.process.tls import ClientTls


@dataclass(frozen=True, slots=True)
class RankSource:
    """One rank's event stream: its rank, its codec and its properties."""

    pod: str
    rank: int
    model: str
    """The base model's name in the configuration, from which keys derive."""
    decode: Callable[[bytes], Batch]
    """The engine's codec; raises MalformedEventError."""
    has_replay: bool
    is_queue: bool = False
    """Whether the engine queues events until they are fetched."""
    topic: str = ""
    """The topic of this rank's frames; others are ignored. Empty: any topic."""
    capacity: int = 0
    """Blocks of the engine's cache; 0: not known, or in the engine's own events."""
    said_rank: int | None = None
    """The rank's number in the engine's batches; None: it is not checked."""
    dialect: str = ""
    """The format of batches for the compiled scanner: vllm or sglang; empty: they must be decoded."""


@dataclass(frozen=True, slots=True)
class Engine:
    """The description of one engine instance and its events."""

    pod: str
    model: str
    engine: str
    """A name of `ENGINES`."""
    events: str
    """Rank 0's ZeroMQ endpoint; for trtllm the URL of /kv_cache_events."""
    replay: str = ""
    topic: str = ""
    ranks: int = 1
    first_rank: int = 0
    """The engine's own number of the first rank here, which is added to rank 0's port."""
    blocks: int = 0
    """Blocks of a rank's cache; 0: not known."""
    block_size: int = 32
    """The tokens_per_block of trtllm, whose events do not have it."""

    def sources(self) -> list[RankSource]:
        kind = ENGINES[self.engine]
        polled = kind.is_polled
        return [
            RankSource(
                pod=self.pod,
                rank=number,
                model=self.model,
                decode=kind.codec(self.block_size),
                has_replay=bool(self.replay),
                is_queue=polled,
                topic=self.topic,
                capacity=self.blocks,
                # A single rank may have any number behind a mapped port, so it is not compared.
                said_rank=None if polled or self.ranks == 1 else self.first_rank + number,
                dialect=kind.dialect,
            )
            for number in range(self.ranks)
        ]


@dataclass(frozen=True, slots=True)
class EngineTls:
    """The TLS that verifies engines' certificates, and the name expected in them."""

    tls: ClientTls
    name: str | None = None
    """The name in each engine's certificate; None: the host of its address."""

    @property
    def context(self) -> ssl.SSLContext:
        """The context of the next connection; another one after the files have changed."""
        return self.tls.context


@dataclass(frozen=True, slots=True)
class Patience:
    """Limits of connections, in seconds and bytes, and TLS settings for engines with HTTPS."""

    replay_seconds: float = 10.0
    """Longest wait for each message of a replay, and for an answer of TensorRT-LLM; an engine answers
    between two steps."""
    reconnect_seconds: float = 0.25
    """Pause between attempts to connect."""
    max_frame_bytes: int = 64 << 20
    """Largest accepted message: a step of a million tokens is 5 MB."""
    tls: EngineTls | None = None
    """The TLS to engines; None: certificates are verified with the system's authorities."""
