"""The settings of one run of `warmpath simulate`: one policy, one fleet, one load."""

from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Literal, get_args

from warmpath.lab.simulate.autoscaler import requests_a_pod
from warmpath.lab.simulate.study import variant
from warmpath.lab.simulate.traffic.generated import Generated
from warmpath.lab.simworker.latency import LatencyModel
from warmpath.lab.simworker.presets import DEFAULT_PRESET, PRESETS

MOST_PODS = 1024
MOST_ROUTERS = 16
MOST = 1e6
"""The greatest --speed and numbers of sessions, and the most seconds of --report-delay and pauses."""

EngineKind = Literal["serial", "vllm"]
ENGINE_KINDS: tuple[EngineKind, ...] = get_args(EngineKind)
Reports = Literal["all", "ends", "none"]
"""The gateway's reports: first tokens and ends, only ends, or none."""
REPORTS: tuple[Reports, ...] = get_args(Reports)
By = Literal["request", "session"]
"""The router that a request reaches, of several: the next in turn, or one for each session."""
BYS: tuple[By, ...] = get_args(By)
Sharing = Literal["shared", "apart"]
"""Whether several routers share their bookings."""
SHARINGS: tuple[Sharing, ...] = get_args(Sharing)


@dataclass(frozen=True, slots=True)
class Cell:
    """The settings of one run; times are in seconds."""

    trace: Path | Generated
    policy: str
    """The name of a variant (`lab.simulate.study`)."""
    pods: int
    blocks_per_pod: int
    load: float = 0.5
    """The seconds of prefill over pods x time; only where `speed` is 0."""
    speed: float = 0.0
    """How many times as fast as recorded requests come; 0: as `load` says."""
    sessions: int = 0
    """How many sessions run at once in a closed loop; 0: as `session_rate` says."""
    session_rate: float = 0.0
    """How many sessions begin in a second, each in a closed loop; 0 for both: no closed loop."""
    longest_pause: float = 600.0
    """To how many seconds the pauses of a closed loop are cut."""
    beside: str = ""
    """A file of requests that a closed loop's sessions share the fleet with, as many prompt tokens."""
    has_agents: bool = True
    """Whether a closed loop's sessions have their sub-agents."""
    factors: tuple[float, ...] = ()
    """How many times as long each pod takes for everything; empty: all pods are alike."""
    requests: int = 0
    """How many requests, from the first; 0: all of a file, or 6,000 generated ones.

    In a closed loop whole sessions are taken, in an order by the seed, until there are so many."""
    seed: int = 1
    engine: EngineKind = "serial"
    preset: str = DEFAULT_PRESET
    queue: bool = False
    """Whether picks may wait in the router."""
    engine_priority: bool = False
    """Whether engines begin prompts in the order of the pick's `engine_priority`."""
    routers: int = 1
    routers_by: By = "request"
    bookings: Sharing = "shared"
    event_delay: float = 0.05
    scrape: float = 0.05
    no_events_share: float = 0.0
    estimate_factor: float = 1.0
    reports: Reports = "all"
    report_delay: float = 0.0
    lost_reports: float = 0.0
    """The share of requests none of whose reports arrive."""
    outage: float = 0.0
    """For how long the first pod is dead, from half of the traffic on; 0: it lives."""
    scale: str = ""
    """The metric by which pods are started and ended (`lab.simulate.autoscaler`); empty: all serve."""
    cold_start: float = 90.0
    """How long a started pod takes until it serves."""
    wave: float = 0.0
    """The depth of a day's wave in the arrivals, 0 to 1: the rate goes once from 1 - wave to 1 + wave
    times its mean, and back."""
    raw_bursts: bool = False

    @property
    def title(self) -> str:
        queued = f"{self.policy}, queued" if self.queue else self.policy
        queued += f", scaled by {self.scale}" if self.scale else ""
        return f"{queued}, by engine priority" if self.engine_priority else queued

    @property
    def is_closed(self) -> bool:
        return bool(self.sessions or self.session_rate)

    @property
    def pace(self) -> str:
        """How requests come, in a closed loop; empty where they come at times of their own."""
        if self.session_rate:
            return f"{self.session_rate:g} sessions a second"
        return f"{self.sessions} sessions at once" if self.sessions else ""

    @property
    def shares_bookings(self) -> bool:
        return self.routers > 1 and self.bookings == "shared"

    @property
    def latency(self) -> LatencyModel:
        return PRESETS[self.preset]

    def latency_of(self, pod: int) -> LatencyModel:
        """Return the latency model of a pod, by its number."""
        return self.latency.times(self.factors[pod]) if self.factors else self.latency

    def check(self) -> None:
        """Raise ValueError, naming the option and its limit, for a value that makes no sense."""
        for name, value, lowest, most in (
            ("--pods", self.pods, 1, MOST_PODS),
            ("--blocks-per-pod", self.blocks_per_pod, 1, inf),
            ("--requests", self.requests, 0, inf),
            ("--routers", self.routers, 1, MOST_ROUTERS),
            ("--speed", self.speed, 0.0, MOST),
            ("--sessions", self.sessions, 0, MOST),
            ("--session-rate", self.session_rate, 0.0, MOST),
            ("--longest-pause", self.longest_pause, 0.0, MOST),
            ("--event-delay", self.event_delay, 0.0, inf),
            ("--report-delay", self.report_delay, 0.0, MOST),
            ("--scrape", self.scrape, 0.0, inf),
            ("--outage", self.outage, 0.0, inf),
            ("--cold-start", self.cold_start, 0.0, MOST),
            ("--wave", self.wave, 0.0, 1.0),
        ):
            if not value >= lowest:
                raise ValueError(f"{name} is {value}, less than {lowest}")
            if value > most:
                raise ValueError(f"{name} is {value}, more than {most:g}")
        for name, factor in (
            ("--load", self.load),
            ("--estimate-factor", self.estimate_factor),
            *(("--pods: a factor", one) for one in self.factors),
        ):
            if not 0 < factor <= 1000:
                raise ValueError(f"{name} is {factor}, not above 0 and at most 1000")
        if self.factors and len(self.factors) != self.pods:
            raise ValueError(f"--pods: {len(self.factors)} factors for {self.pods} pods")
        for name, share in (
            ("--no-events-share", self.no_events_share),
            ("--lost-reports", self.lost_reports),
        ):
            if not 0 <= share <= 1:
                raise ValueError(f"{name} is {share}, not 0 to 1")
        if self.lost_reports and self.reports == "none":
            raise ValueError(
                "--lost-reports: with --reports none there are none that could be lost"
            )
        if self.report_delay and self.reports == "none":
            raise ValueError(
                "--report-delay: with --reports none there are none that could be late"
            )
        if self.routers_by == "session" and self.routers == 1:
            raise ValueError(
                "--routers-by: one router has every session anyway; --routers 3 has others"
            )
        if self.bookings == "apart" and self.routers == 1:
            raise ValueError(
                "--bookings: one router shares them with nobody; --routers 3 has others"
            )
        if self.outage and self.is_closed:
            raise ValueError("--outage: a closed loop has no half of its time")
        requests_a_pod(self.scale)
        for option, is_given in (("--outage", self.outage), ("--routers", self.routers > 1)):
            if self.scale and is_given:
                raise ValueError(f"--scale: does not go with {option}")
        if self.wave and self.is_closed:
            raise ValueError("--wave: the requests of a closed loop have no times of their own")
        if self.engine_priority and self.engine != "vllm":
            raise ValueError("--engine-priority: only --engine vllm can order prompts by it")
        if self.preset not in PRESETS:
            raise ValueError(f"--preset is {self.preset}; known: {', '.join(PRESETS)}")
        if self.outage and self.pods == 1:
            raise ValueError("--outage: there is no second pod for the requests of the first")
        if variant(self.policy).is_pooled:
            if self.engine != "serial":
                raise ValueError("--policy pooled: only engine serial can share a cache")
            if self.scale:
                raise ValueError("--policy pooled: --scale: a shared cache has no pods to start")
            if self.outage:
                raise ValueError(
                    "--policy pooled: --outage: a shared cache does not die with a pod"
                )
