"""A step of an engine, as far as first tokens show it: those of one step come together."""

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Step:
    """The prefills of one step, in seconds."""

    is_measured: bool = True
    """Whether the measured and the predicted time can be compared."""
    prefills: int = 0
    seconds: float = 0.0
    """Measured time, from the first prefill's earliest possible start to the last first token."""
    predicted: float = 0.0
    """Predicted time, with one fixed part."""
    running: int = 0
    """Number of its requests that have not ended."""
    is_latest: bool = True
    """Whether it is the rank's latest one, and may get more prefills."""

    def add(self, seconds: float, predicted: float) -> None:
        """Add a prefill, whose request is running."""
        self.prefills += 1
        self.running += 1
        self.seconds += seconds
        self.predicted += predicted

    @property
    def is_over(self) -> bool:
        """Whether nothing about it can change any more."""
        return not self.is_latest and not self.running
