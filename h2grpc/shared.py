"""What all connections of a server share."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from warmpath.h2grpc.announced import Announced
from warmpath.h2grpc.http2.journal import Journal
from warmpath.h2grpc.http2.limits import Http2Limits
from warmpath.h2grpc.method import Explain, Gate, Method, unexplained


@dataclass(eq=False)
class Shared:
    """Methods by name (/SERVICE/METHOD), limits, and the other parts that all connections use."""

    methods: Mapping[str, Method]
    limits: Http2Limits
    gate: Gate | None = None
    explain: Explain = unexplained
    clock: Callable[[], float] = time.monotonic
    announced: Announced = field(init=False)
    journal: Journal = field(init=False)

    def __post_init__(self) -> None:
        gate, limits = self.gate, self.limits
        self.announced = Announced(limits.message_seconds, gate, self.explain, self.clock)
        self.journal = Journal(limits) if gate is None else Journal(limits, gate.methods)
