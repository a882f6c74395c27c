"""How long sessions take alone on an idle fleet: with this their times in company are compared."""

from collections.abc import Sequence
from random import Random

from warmpath.lab.simulate.cell import Cell
from warmpath.lab.simulate.closed_loop import ClosedLoop, LoopRun
from warmpath.lab.simulate.fleet import SimulatedEngine, build_engine
from warmpath.lab.simulate.traffic.sessions import Session
from warmpath.lab.simworker.engine import Generation
from warmpath.lab.simworker.v1.cache.kv_cache_event import CacheEvent
from warmpath.lab.simworker.virtual.cluster import VirtualCluster


def alone(cell: Cell, sessions: Sequence[Session], block_size: int, longest: int) -> list[float]:
    """Return the seconds of each session by itself, its sub-agents on pods of their own.

    `longest` is the most tokens of a prompt with its answer.
    """
    pods = min(cell.pods, max(len(one.threads) for one in sessions))
    run = _Alone([build_engine(cell, block_size, longest, pod) for pod in range(pods)], sessions)
    return [ended - begun for _, (begun, ended) in sorted(run.loop.took.items())]


class _Alone:
    """Runs one session after the other on engines that hold nothing at its begin."""

    def __init__(self, engines: Sequence[SimulatedEngine], sessions: Sequence[Session]) -> None:
        self.loop = ClosedLoop(sessions, at_once=1, rng=Random(0))
        self._engines = engines
        self._last = -1
        self._run = LoopRun(
            self.loop, VirtualCluster[CacheEvent](engines, self._route), self._generation
        )
        self._run.run()

    def _route(self, generation: Generation, _now: float) -> int:
        return self.loop.thread[int(generation.request_id)] % len(self._engines)

    def _generation(self, number: int) -> Generation:
        one, session = self.loop.requests[number], self.loop.session[number]
        if session != self._last:
            self._last = session
            for engine in self._engines:
                engine.reset_prefix_cache()

        def take(_tokens: list[int], last: bool) -> None:
            if last:
                self._run.ended(number)

        return Generation(
            str(number), range(one.prompt_tokens), one.output_tokens, take,
            prompt_hashes=one.block_hashes, answer_hashes=one.answer_hashes,
        )  # fmt: skip
