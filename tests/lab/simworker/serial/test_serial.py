"""The policy study's engine: one prefill at a time, and one batch that decodes beside it."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.lab.simworker.state_machines import EXAMPLES, long_test
from warmpath.lab.simulate.run import pooled, spread
from warmpath.lab.simulate.traffic.access_log import read_traffic
from warmpath.lab.simworker.engine import Generation, RequestRefusedError
from warmpath.lab.simworker.latency import LatencyModel, StepWork
from warmpath.lab.simworker.serial.block_cache import BlockCache
from warmpath.lab.simworker.serial.engine import SerialEngine
from warmpath.lab.simworker.v1.cache.kv_cache_event import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    CacheEvent,
)
from warmpath.lab.simworker.virtual.cluster import LeapingEngine, RequestOutcome, VirtualCluster

LATENCY = LatencyModel()
SLICE = Path(__file__).parents[4] / "lab" / "demo" / "conversation-slice.jsonl.gz"


def engine(blocks: int = 100, **options: float) -> SerialEngine:
    return SerialEngine(BlockCache(blocks), 512, LATENCY, **options)  # type: ignore[arg-type]


def ignore(_tokens: list[int], _last: bool) -> None:
    pass


def generation(name: str, blocks: str, tokens: int = 1, *, length: int = 0) -> Generation:
    """Return a prompt with a block for each letter; its hash stands for all letters up to there."""
    hashes = [
        blocks[: end + 1].encode().rjust(8, b"\0")[-8:] for end in range(len(blocks))
    ]  # at most 8 letters
    length = length or 512 * len(blocks)
    return Generation(name, range(length), tokens, ignore, prompt_hashes=hashes)


def serve(
    arrivals: Sequence[tuple[float, Generation]], one: SerialEngine | None = None
) -> list[RequestOutcome]:
    cluster = VirtualCluster([one or engine()], lambda *_: 0)
    outcomes = cluster.run(arrivals)
    cluster.check()
    return outcomes


def prefill(new: int, before: int = 0) -> float:
    return LATENCY.step(StepWork([(new, before)]))


def names(events: Sequence[CacheEvent], kind: type[BlockStored | BlockRemoved]) -> list[str]:
    return [
        name.to_bytes(8, "big").lstrip(b"\0").decode()
        for event in events
        if isinstance(event, kind)
        for name in event.block_hashes
        if isinstance(name, int)
    ]


def test_no_prefill_begins_beside_a_full_batch() -> None:
    first, second = serve(
        [(0.0, generation("a", "a", 40)), (0.01, generation("b", "b"))], engine(max_decoding=1)
    )
    assert second.first_token == pytest.approx(first.end + prefill(512))


def test_what_does_not_fit_waits_and_all_behind_it() -> None:
    one = engine(6)
    arrivals = [
        (0.0, generation("a", "abc", 40)),
        (0.01, generation("big", "wxyz", 1)),
        (0.02, generation("c", "c", 1)),
    ]
    first, big, last = serve(arrivals, one)
    assert big.first_token == pytest.approx(first.end + prefill(2048))
    assert last.first_token > big.first_token
    one.check()


def test_blocks_are_announced_when_their_prefill_is_over() -> None:
    told: list[tuple[float, list[str]]] = []
    cluster = VirtualCluster(
        [engine()],
        lambda *_: 0,
        on_events=lambda now, _, events: told.append((now, names(events, BlockStored))),
        event_delay=0.5,
    )
    first, second = cluster.run([(0.0, generation("a", "ab")), (5.0, generation("b", "abc"))])
    assert told == [(first.end + 0.5, ["a", "ab"]), (second.end + 0.5, ["abc"])]


def test_engines_that_share_a_cache_find_what_others_computed() -> None:
    cache = BlockCache(8)
    engines = [SerialEngine(cache, 512, LATENCY) for _ in range(2)]
    cluster = VirtualCluster(engines, lambda one, _: int(one.request_id))
    first, second = cluster.run(
        [(0.0, generation("0", "abcd", 60)), (1.0, generation("1", "abcde"))]
    )
    assert second.num_cached_tokens == 2048
    assert second.first_token < first.end
    waits = [(3.0, generation("0", "mnopq", 60)), (3.9, generation("1", "vwxyz"))]
    first, second = cluster.run(waits)
    # It has no end of its own to wait for: it asks again, a step's time at most too late.
    assert 0 <= second.first_token - prefill(2560) - first.end <= LATENCY.base
    for one in engines:
        one.check()
    cluster.check()


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (Generation("a", [1], 1, ignore), "prompt_hashes: this engine"),
        (Generation("a", [], 1, ignore, prompt_hashes=[]), "prompt is empty"),
        (generation("a", "ab", 0), "max_tokens is 0"),
        (generation("a", "ab", length=400), "prompt_hashes: 2 for 400 tokens"),
        (generation("a", "ab", length=1536), "prompt_hashes: 2 for 1536 tokens"),
        (generation("a", "abcdefgh", 52_000), "do not fit into 100 blocks"),
    ],
)
def test_what_can_never_be_served_is_refused(asked: Generation, why: str) -> None:
    with pytest.raises(RequestRefusedError, match=why):
        engine().submit(asked)


def test_an_id_in_use_is_refused() -> None:
    one = engine()
    one.submit(generation("a", "a"))
    with pytest.raises(RequestRefusedError, match="'a' is in use"):
        one.submit(generation("a", "b"))


def test_settings_without_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="capacity is 0"):
        BlockCache(0)
    with pytest.raises(ValueError, match="block_size is 0"):
        SerialEngine(BlockCache(1), 0)


def test_an_aborted_answer_ends_with_the_tokens_made_by_then() -> None:
    cluster = VirtualCluster([engine()], lambda *_: 0)
    cluster.abort_at(1.0, "a")
    first, second = cluster.run(
        [(0.0, generation("a", "ab", 900)), (0.5, generation("b", "xy", 30))]
    )
    assert first.end == 1.0
    assert 20 < first.num_output_tokens < 45
    assert second.num_output_tokens == 30


def test_an_aborted_prefill_leaves_nothing_behind() -> None:
    one = engine()
    cluster = VirtualCluster([one], lambda *_: 0)
    cluster.abort_at(0.05, "a")
    _, second = cluster.run([(0.0, generation("a", "abcd")), (0.04, generation("b", "abcd"))])
    assert second.num_cached_tokens == 0
    assert second.first_token == pytest.approx(0.05 + prefill(2048))


def test_a_trace_is_served_as_the_studys_simulator_serves_it() -> None:
    """Sums of the policy study's own simulator: round-robin, 3 pods of 400 blocks, load 0.6."""
    lines = spread(read_traffic(SLICE).requests)
    _, work = pooled(lines, 3 * 400, 512, LATENCY)
    speed = 0.6 * 3 * (lines[-1].at - lines[0].at) / work
    cluster = VirtualCluster(
        [engine(400) for _ in range(3)], lambda one, _: int(one.request_id) % 3
    )
    outcomes = cluster.run(
        (
            (line.at - lines[0].at) / speed,
            Generation(
                str(number),
                range(line.prompt_tokens),
                line.output_tokens,
                ignore,
                prompt_hashes=line.block_hashes,
            ),
        )
        for number, line in enumerate(lines)
    )
    assert sum(one.num_cached_tokens for one in outcomes) == 789058
    assert sum(one.ttft for one in outcomes) == pytest.approx(6333.373059570019, rel=1e-9)
    ends = sum(one.end - one.arrival for one in outcomes)
    assert ends == pytest.approx(12183.679748851482, rel=1e-9)


def test_it_can_be_cut() -> None:
    assert isinstance(engine(), LeapingEngine)


REQUESTS = st.lists(
    st.tuples(
        st.integers(0, 900), st.sampled_from(["abcdef", "abxyz", "mnop"]), st.integers(1, 6),
        st.integers(1, 70),
    ),
    min_size=1,
    max_size=14,
)  # fmt: skip


@settings(max_examples=EXAMPLES)
@given(requests=REQUESTS, cuts=st.lists(st.integers(0, 4000), max_size=12))
def test_where_a_step_is_cut_makes_no_difference(
    requests: list[tuple[int, str, int, int]], cuts: list[int]
) -> None:
    def run(cuts: Sequence[int]) -> list[RequestOutcome]:
        one = engine(12)
        cluster = VirtualCluster([one], lambda *_: 0)
        for cut in cuts:
            # Aborting what is not there cuts, and does nothing else.
            cluster.abort_at(cut / 1009, "nobody")
        arrivals, time = [], 0.0
        for number, (gap, prompt, blocks, tokens) in enumerate(requests):
            time += gap / 997
            arrivals.append((time, generation(str(number), prompt[:blocks], tokens)))
        outcomes = cluster.run(arrivals)
        one.check()
        cluster.check()
        return outcomes

    for ours, theirs in zip(run(cuts), run([]), strict=True):
        assert ours.num_cached_tokens == theirs.num_cached_tokens
        assert ours.first_token == pytest.approx(theirs.first_token, rel=1e-9)
        assert ours.end == pytest.approx(theirs.end, rel=1e-9)


class Machine(RuleBasedStateMachine):
    """Requests are served whole and in order; what events say is what the cache holds."""

    @initialize(blocks=st.integers(9, 20), decoding=st.integers(1, 4))
    def start(self, blocks: int, decoding: int) -> None:
        self.engine = SerialEngine(BlockCache(blocks), 512, LATENCY, max_decoding=decoding)
        self.open: dict[str, int] = {}
        self.firsts: list[int] = []
        self.held: set[int | bytes] = set()
        self.made = 0
        self.begun = False

    @rule(
        prompt=st.sampled_from(["abcdef", "abcxyz", "mnopqr"]), blocks=st.integers(1, 6),
        tokens=st.sampled_from([1, 2, 30, 700, 1100]), short=st.integers(0, 511),
    )  # fmt: skip
    def submit(self, prompt: str, blocks: int, tokens: int, short: int) -> None:
        number, self.made = self.made, self.made + 1
        one = generation(str(number), prompt[:blocks], tokens, length=512 * blocks - short)

        def take(new: list[int], last: bool) -> None:
            if self.open[str(number)] == tokens:
                self.firsts.append(number)
            self.open[str(number)] -= len(new)
            assert last == (self.open[str(number)] == 0)
            if last:
                del self.open[str(number)]

        one.on_tokens = take
        self.open[str(number)] = tokens
        self.engine.submit(one)

    @precondition(lambda self: not self.begun and self.engine.busy)
    @rule(cut=st.one_of(st.none(), st.floats(0, 2)))
    def begin(self, cut: float | None) -> None:
        seconds = self.engine.begin_step()
        assert 0 <= seconds < 100
        if cut is not None:
            assert self.engine.cut_step(cut) <= min(cut, seconds)
        self.begun = True

    @precondition(lambda self: self.begun)
    @rule()
    def finish(self) -> None:
        self.hear(self.engine.end_step())
        self.begun = False

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.open)))
        self.engine.cut_step(0.0)
        self.engine.abort(name)
        self.engine.abort(name)
        del self.open[name]

    @rule()
    def reset(self) -> None:
        unused = self.engine.load().kv_cache_usage == 0
        assert self.engine.reset_prefix_cache() == unused

    def hear(self, events: list[CacheEvent]) -> None:
        for event in events:
            match event:
                case BlockStored():
                    assert self.held.isdisjoint(event.block_hashes)
                    assert event.parent_block_hash is None or event.parent_block_hash in self.held
                    self.held.update(event.block_hashes)
                case BlockRemoved():
                    assert self.held.issuperset(event.block_hashes)
                    self.held.difference_update(event.block_hashes)
                case AllBlocksCleared():
                    self.held.clear()

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.engine.check()
        load = self.engine.load()
        assert load.prefix_cache_hits <= load.prefix_cache_queries
        assert load.kv_cache_usage <= 1
        assert all(before < after for before, after in pairwise(self.firsts))

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        if self.begun:
            self.finish()
        while self.engine.busy:
            self.begin(None)
            self.finish()
        self.hear(self.engine.end_step())
        assert not self.open
        assert self.engine.load().kv_cache_usage == 0
        cached = [name.to_bytes(8, "big") for name in self.held if isinstance(name, int)]
        assert all(self.engine.cache.matched([name]) for name in cached)


TestMachine = long_test(Machine)
