"""The load of a rank, as a caller sees it."""

from dataclasses import asdict, dataclass
from numbers import Integral

from warmpath.client.checks import check_figure, check_names, check_numbers
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.load.engine_metrics import problem_of


@dataclass(frozen=True, slots=True)
class PodLoad:
    """A rank's load as a caller knows it; it counts for a few seconds, corrected by later bookings.

    Raises ValueError for an impossible load, TypeError for what is no figure.

    >>> PodLoad("pod-1", running=3, waiting=1, kv_usage=0.4).rank
    0
    """

    pod: str
    rank: int = 0
    running: int = 0
    """Requests that the engine computes."""
    waiting: int = 0
    """Requests in its queue."""
    kv_usage: float = 0.0
    """Share of its KV cache that requests hold, 0 to 1."""
    age: float = 0.0
    """The age of these figures, in seconds."""

    def __post_init__(self) -> None:
        check_names(pod=self.pod)
        check_numbers(Integral, rank=self.rank, running=self.running, waiting=self.waiting)
        check_numbers(kv_usage=self.kv_usage, age=self.age)
        found = problem_of(
            running=self.running, waiting=self.waiting, kv_usage=self.kv_usage, age=self.age
        )
        if found is not None:
            field, problem = found
            raise ValueError(f"the load of pod {self.pod!r}: {field or 'it'} {problem}")
        check_figure("rank", self.rank)

    def message(self) -> pb.PodLoad:
        return pb.PodLoad(**asdict(self))
