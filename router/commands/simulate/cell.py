"""The settings of one run of `warmpath simulate`: one policy, one fleet, one load."""

from dataclasses import dataclass
from pathlib import Path

from router.commands.simulate.fleet import EngineKind
from router.commands.simulate.router import Reports
from router.commands.simulate.study import variant
from router.commands.simulate.traffic import Generated
from simworker.presets import DEFAULT_PRESET, PRESETS

MOST_PODS = 1024


@dataclass(frozen=True, slots=True)
class Cell:
    """The settings of one run; times are in seconds."""

    trace: Path | Generated
    policy: str
    """A variant (`router.commands.simulate.study`)."""
    pods: int
    blocks_per_pod: int
    load: float
    requests: int = 0
    """How many requests, from the first; 0: all of a file, or 6,000 generated ones."""
    seed: int = 1
    engine: EngineKind = "serial"
    preset: str = DEFAULT_PRESET
    event_delay: float = 0.05
    scrape: float = 0.05
    no_events_share: float = 0.0
    estimate_factor: float = 1.0
    slow_factor: float = 1.0
    reports: Reports = "all"
    raw_bursts: bool = False

    def check(self) -> None:
        """Raise ValueError, naming the option and its limit, for a value that makes no sense."""
        for name, value, lowest in (
            ("--pods", self.pods, 1),
            ("--blocks-per-pod", self.blocks_per_pod, 1),
            ("--requests", self.requests, 0),
            ("--event-delay", self.event_delay, 0.0),
            ("--scrape", self.scrape, 0.0),
        ):
            if not value >= lowest:
                raise ValueError(f"{name} is {value}, less than {lowest}")
        if self.pods > MOST_PODS:
            raise ValueError(f"--pods is {self.pods}, more than {MOST_PODS}")
        for name, factor in (
            ("--load", self.load),
            ("--estimate-factor", self.estimate_factor),
            ("--slow-factor", self.slow_factor),
        ):
            if not 0 < factor <= 1000:
                raise ValueError(f"{name} is {factor}, not above 0 and at most 1000")
        if not 0 <= self.no_events_share <= 1:
            raise ValueError(f"--no-events-share is {self.no_events_share}, not 0 to 1")
        if self.preset not in PRESETS:
            raise ValueError(f"--preset is {self.preset}; known: {', '.join(PRESETS)}")
        if variant(self.policy).is_pooled and self.engine != "serial":
            raise ValueError("--policy pooled: only engine serial can share a cache")
