"""The scheduler and the engine, on a clock of their own."""

from simworker.engine import Engine
from simworker.hashing import none_hash
from simworker.kv_cache_manager import KVCacheManager
from simworker.latency import LatencyModel
from simworker.request import Hasher, Request
from simworker.scheduler import Scheduler

HASHER = Hasher(4, none_hash())


class Bench:
    """An engine that is stepped by hand."""

    def __init__(self, blocks: int = 100, budget: int = 32, seqs: int = 8) -> None:
        self.manager = KVCacheManager(blocks, 4, 1000)
        self.scheduler = Scheduler(self.manager, max_num_seqs=seqs, max_num_batched_tokens=budget)
        self.engine = Engine(
            self.manager, self.scheduler, LatencyModel(), max_model_len=1000, vocab_size=500
        )
        self.answers: dict[str, list[int]] = {}
        self.seconds = 0.0

    def submit(self, name: str, prompt: list[int], tokens: int) -> Request:
        one = Request(name, prompt, hasher=HASHER, max_tokens=tokens)
        answer = self.answers.setdefault(name, [])
        self.engine.submit(one, lambda new, _: answer.extend(new))
        return one

    def step(self) -> int:
        step, seconds = self.engine.begin_step()
        self.seconds += seconds
        self.engine.end_step(step)
        self.manager.check()
        return sum(step.tokens.values())

    def run(self) -> None:
        for _ in range(10_000):
            if not self.engine.busy:
                return
            assert self.step()
        raise AssertionError("the engine does not come to an end")


def test_a_request_gets_what_it_asked_for_and_the_same_again() -> None:
    first, second = Bench(), Bench()
    for bench in (first, second):
        bench.submit("a", list(range(20, 40)), 7)
        bench.run()
    assert len(first.answers["a"]) == 7
    assert first.answers == second.answers
    assert all(16 <= token < 500 for token in first.answers["a"])


def test_a_long_prompt_is_computed_in_chunks_within_the_budget() -> None:
    bench = Bench(budget=32)
    bench.submit("a", list(range(100)), 1)
    assert [bench.step() for _ in range(4)] == [32, 32, 32, 4]
    assert not bench.engine.busy


def test_two_requests_scheduled_in_one_step_share() -> None:
    bench = Bench(budget=64)
    bench.submit("a", list(range(20)), 1)
    second = bench.submit("b", list(range(20)), 1)
    bench.run()
    assert second.num_cached_tokens == 16


def test_requests_that_outgrow_the_cache_are_preempted_and_all_finish() -> None:
    bench = Bench(blocks=14, budget=64)
    for number in range(4):
        bench.submit(str(number), [number * 10 + token for token in range(8)], 30)
    bench.run()
    assert bench.scheduler.num_preemptions > 0
    assert all(len(answer) == 30 for answer in bench.answers.values())
    assert bench.manager.block_pool.get_num_free_blocks() == 13


def test_an_aborted_request_gives_its_blocks_back_and_stays_cached() -> None:
    bench = Bench()
    bench.submit("a", list(range(20)), 50)
    bench.step()
    bench.engine.abort("a")
    assert not bench.engine.busy
    assert bench.manager.block_pool.get_num_free_blocks() == 99
    again = bench.submit("b", list(range(20)), 1)
    bench.run()
    assert again.num_cached_tokens == 16


def test_cached_tokens_take_no_time() -> None:
    cold, warm = Bench(), Bench()
    for bench in (cold, warm):
        bench.submit("a", list(range(32)), 1)
        bench.run()
    spent = warm.seconds
    cold.submit("b", list(range(100, 132)), 1)
    warm.submit("b", [*range(32)], 1)
    cold.run()
    warm.run()
    assert warm.seconds - spent < cold.seconds - spent


def test_the_latency_model_adds_up_as_stated() -> None:
    model = LatencyModel(base=1, prefill=10, context=100, decode=1000, decode_context=10000)
    assert model.step([], 0, 0) == 1
    assert model.step([(2, 3)], 0, 0) == 1 + 2 * (10 + 100 * (3 + 1))
    assert model.step([], 2, 5) == 1 + 2 * 1000 + 5 * 10000
