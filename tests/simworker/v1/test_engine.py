"""The scheduler and the engine, on a clock of their own."""

from simworker.engine import Generation
from simworker.latency import LatencyModel, StepWork
from simworker.v1.block_hash import none_hash
from simworker.v1.engine import V1Engine
from simworker.v1.kv_cache_manager import KVCacheManager
from simworker.v1.request import Hasher
from simworker.v1.scheduler import Scheduler

HASHER = Hasher(4, none_hash())


class Bench:
    """An engine that is stepped by hand."""

    def __init__(self, blocks: int = 100, budget: int = 32, seqs: int = 8) -> None:
        self.manager = KVCacheManager(blocks, 4, 1000)
        self.scheduler = Scheduler(self.manager, max_num_seqs=seqs, max_num_batched_tokens=budget)
        self.engine = V1Engine(
            self.manager, self.scheduler, LatencyModel(), HASHER, max_model_len=1000, vocab_size=500
        )
        self.answers: dict[str, list[int]] = {}
        self.seconds = 0.0

    def submit(self, name: str, prompt: list[int], tokens: int) -> Generation:
        answer = self.answers.setdefault(name, [])
        one = Generation(name, prompt, tokens, lambda new, _: answer.extend(new))
        self.engine.submit(one)
        return one

    def step(self) -> int:
        self.seconds += self.engine.begin_step()
        work = self.engine.work
        self.engine.end_step()
        self.manager.check()
        return sum(new for new, _ in work.prefills) + work.decoding

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
    assert model.step(StepWork()) == 1
    assert model.step(StepWork([(2, 3)])) == 1 + 2 * (10 + 100 * (3 + 1))
    assert model.step(StepWork([], 2, 5)) == 1 + 2 * 1000 + 5 * 10000
