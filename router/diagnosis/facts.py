"""The facts about the router, a pod and its ranks from which findings derive."""

from collections.abc import Sequence
from dataclasses import dataclass

from warmpath.indexer.trust import Trust
from warmpath.router.diagnosis.attribution import Row
from warmpath.router.peers.exchange import PeerBookings
from warmpath.router.pods.discover import SourceState
from warmpath.router.readiness import Readiness


@dataclass(frozen=True, slots=True)
class RankFacts:
    """The state of one rank now."""

    number: int
    trust: Trust
    trust_seconds: float
    """For how long it has had this trust."""
    inexact_seconds: float
    """For how long it has not been exact, with whatever trust."""
    block_size: int
    """Tokens per block; 0 before the first event."""
    blocks: int
    """Number of blocks that the rank holds, by its events."""
    stored: int
    """Blocks that events announced as stored, and as removed, since the router started."""
    removed: int
    has_load: bool
    """Whether its engine or a gateway has reported its load lately."""
    bad_figures: Sequence[str] = ()
    """The figures that its latest metrics lack, or that cannot be (`Observed.bad`)."""
    stuck_seconds: float = 0.0
    """For how long it has answered nothing, if it is stuck (`router.load.stuck`)."""
    capacity: int = 0
    """Blocks of its fastest tier; 0: not known."""
    drifts: int = 0
    """How often more blocks were announced than its fastest tier has, since the router started."""
    lag_batches: int = 0
    """Batches of its events that were received and not applied yet."""


@dataclass(frozen=True, slots=True)
class PodFacts:
    """The present state of one pod, from which findings are made; texts are as in `Pod` and `Status`."""

    has_events: bool
    is_well: bool
    """Whether the last probe found it healthy; then its metrics were read too."""
    ranks: Sequence[RankFacts]
    row: Row
    typical_factor: float = 1.0
    """The median calibration of all ranks of the model's pods."""
    refusal: str = ""
    shared: str = ""


@dataclass(frozen=True, slots=True)
class RouterFacts:
    """The state of the router itself."""

    readiness: Readiness
    sources: Sequence[SourceState]
    """The places where pods are found."""
    peers: PeerBookings | None
    """The bookings that are shared with other routers; None: none are."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A likely fault of a pod, or of the router. The text does not name the pod."""

    kind: str
    text: str
    model: str = ""
    """The model whose pods it is about; empty if it is about those of all, or if its pod says it."""
