"""The scheduler: what it decides in a step, by hand, and what holds whatever is done to it."""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.lab.simworker.state_machines import long_test
from tests.lab.simworker.v1.small_cache import full, manager, request, window
from warmpath.lab.simworker.v1.cache.kv_cache_manager import KVCacheManager
from warmpath.lab.simworker.v1.engine import Leap
from warmpath.lab.simworker.v1.hashing.extra_keys import LoRARequest
from warmpath.lab.simworker.v1.requests.request import Request, RequestStatus, SamplingParams
from warmpath.lab.simworker.v1.scheduling.scheduler import Scheduler
from warmpath.lab.simworker.v1.scheduling.scheduler_config import PauseState, SchedulerConfig
from warmpath.lab.simworker.v1.scheduling.scheduler_output import RequestOutput, SchedulerOutput


def scheduler(num_blocks: int = 50, **choices: Any) -> Scheduler:
    defaults = {"max_model_len": 100, "max_num_seqs": 4, "max_num_batched_tokens": 20}
    return Scheduler(
        manager(num_blocks, max_model_len=100, enable_kv_cache_events=True),
        SchedulerConfig(**(defaults | choices)),
    )


def asked(name: str, prompt: int, tokens: int = 5, start: int = 0, **more: Any) -> Request:
    """Return a request with a prompt of its own, or of those with the same `start`."""
    ids = range(start, start + prompt)
    return request(name, list(ids), sampling_params=SamplingParams(max_tokens=tokens), **more)


def add(one: Scheduler, *requests: Request) -> None:
    for each in requests:
        one.add_request(each)


def step(one: Scheduler) -> dict[str, int]:
    """Schedule, sample and update; return the tokens scheduled."""
    output = one.schedule()
    update(one, output)
    one.check()
    return output.num_scheduled_tokens


def update(one: Scheduler, output: SchedulerOutput) -> list[RequestOutput]:
    sampled = {
        name: [1000 + one.requests[name].num_tokens]
        for name in output.num_scheduled_tokens
        if name in one.requests
        and one.requests[name].num_computed_tokens >= one.requests[name].num_tokens
    }
    return one.update_from_output(output, sampled)


def names(requests: Any) -> list[str]:
    return [one.request_id for one in requests]


def test_as_many_steps_are_taken_as_one_as_fill_no_block_and_end_no_answer() -> None:
    one = scheduler()
    add(one, asked("a", 3, 5))
    step(one)
    step(one)
    assert Leap(one).steps_alike(one.schedule()) == 3


def test_finished_requests_are_told_of_once_and_their_ids_are_free() -> None:
    one = scheduler()
    add(one, asked("a", 2, 1))
    with pytest.raises(ValueError, match="request_id 'a' is that of another request"):
        add(one, asked("a", 2))
    step(one)
    assert one.has_finished_requests()
    assert not one.has_unfinished_requests()
    assert one.has_requests()
    assert one.schedule().finished_req_ids == {"a"}
    assert not one.has_requests()
    add(one, asked("a", 2, 1))


@pytest.mark.parametrize("chosen", ["running", ["running", "waiting", "nobody"], None])
def test_requests_are_ended_wherever_they_are(chosen: Any) -> None:
    one = scheduler(max_num_seqs=1)
    add(one, asked("running", 5, start=100), asked("waiting", 5, start=200))
    step(one)
    ended = one.finish_requests(chosen, RequestStatus.FINISHED_STOPPED)
    expected = ["running"] if chosen == "running" else ["running", "waiting"]
    assert names(ended) == expected
    assert {each.status for each in ended} == {RequestStatus.FINISHED_STOPPED}
    assert one.requests.keys() == {"running", "waiting"} - {*expected}
    assert one.finish_requests(chosen) == []
    one.check()


def test_an_end_must_be_one() -> None:
    with pytest.raises(ValueError, match="finished_status is RUNNING, not a finished one"):
        scheduler().finish_requests(None, RequestStatus.RUNNING)


def test_no_tokens_are_taken_beyond_what_was_asked_for() -> None:
    one = scheduler()
    add(one, asked("a", 2, 3))
    output = one.schedule()
    (given,) = one.update_from_output(output, {"a": [7, 8, 9, 10]})
    assert given.new_token_ids == [7, 8, 9]
    assert given.finished


@pytest.mark.parametrize(
    ("choices", "why"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs is 0, less than 1"),
        ({"max_num_batched_tokens": 3}, "max_num_batched_tokens is 3, less than max_num_seqs 4"),
        ({"policy": "lottery"}, "policy is 'lottery', not one of fcfs, priority"),
        ({"enable_chunked_prefill": False}, "max_num_batched_tokens is 20, less than max_model_len 100"),
    ],
)  # fmt: skip
def test_settings_that_vllm_refuses_are_refused(choices: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        scheduler(**choices)


class Machine(RuleBasedStateMachine):
    """Whatever is asked of a scheduler, in whatever order, its promises hold."""

    @initialize(
        policy=st.sampled_from(["fcfs", "priority"]),
        chunks=st.booleans(),
        watermark=st.sampled_from([0.0, 0.2]),
        windowed=st.booleans(),
        caching=st.booleans(),
    )
    def start(
        self, policy: str, chunks: bool, watermark: float, windowed: bool, caching: bool
    ) -> None:
        specs = (full(), window(5)) if windowed else (full(),)
        self.manager: KVCacheManager = manager(
            26 if windowed else 14, *specs, max_model_len=40, enable_caching=caching,
            watermark=watermark, enable_kv_cache_events=True,
        )  # fmt: skip
        self.config = SchedulerConfig(
            max_model_len=40, max_num_seqs=4, max_num_batched_tokens=12 if chunks else 40,
            policy=policy, enable_chunked_prefill=chunks,
        )  # fmt: skip
        self.scheduler = Scheduler(self.manager, self.config)
        self.output: SchedulerOutput | None = None
        self.made = 0
        self.admitted: list[int] = []
        self.passed_by: set[int] = set()
        self.got: dict[str, int] = {}

    @rule(
        prefix=st.integers(0, 2), prompt=st.integers(1, 24), tokens=st.integers(1, 12),
        priority=st.integers(0, 2), lora=st.sampled_from([None, None, "x", "y"]),
        skip=st.sampled_from([False, False, False, True]),
    )  # fmt: skip
    def add(
        self, prefix: int, prompt: int, tokens: int, priority: int, lora: str | None, skip: bool
    ) -> None:
        name = str(self.made)
        self.made += 1
        self.got[name] = 0
        self.scheduler.add_request(
            request(
                name,
                [prefix * 10 + at // 5 for at in range(prompt)],
                sampling_params=SamplingParams(max_tokens=tokens, skip_reading_prefix_cache=skip),
                priority=priority,
                arrival_time=float(self.made),
                lora_request=lora and LoRARequest(lora, ord(lora), lora),
            )
        )

    def schedule(self) -> None:
        before = {*names(self.scheduler.running)}
        self.output = output = self.scheduler.schedule()
        tokens = output.num_scheduled_tokens
        assert sum(output.num_scheduled_tokens.values()) <= self.config.max_num_batched_tokens
        assert all(count > 0 for count in tokens.values())
        running = {*names(self.scheduler.running)}
        assert tokens.keys() <= running
        admitted = names(output.scheduled_new_reqs) + names(output.scheduled_resumed_reqs)
        assert running - before == {*admitted}
        if before - running:
            # Who took blocks from others lets nobody in.
            assert not admitted
        self.admitted += [int(name) for name in names(output.scheduled_new_reqs)]
        work = output.work
        assert sum(new for new, _ in work.prefills) + work.decoding == sum(
            output.num_scheduled_tokens.values()
        )

    def update(self) -> None:
        if self.output is None:
            return
        for one in update(self.scheduler, self.output):
            self.got[one.request.request_id] += len(one.new_token_ids)
            assert one.finished == (self.got[one.request.request_id] == one.request.max_tokens)
        self.output = None
        self.manager.take_events()

    @rule()
    def step(self) -> None:
        self.update()
        self.schedule()

    @rule()
    def end(self) -> None:
        self.update()

    @precondition(lambda self: self.scheduler.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.scheduler.requests)))
        (one,) = self.scheduler.finish_requests(name)
        assert one.request_id == name
        self.passed_by.add(int(name))

    @rule(everything=st.booleans())
    def reset(self, everything: bool) -> None:
        held = self.manager.usage > 0
        done = self.scheduler.reset_prefix_cache(reset_running_requests=everything)
        assert done == (everything or not held)

    @rule(state=st.sampled_from(PauseState))
    def pause(self, state: PauseState) -> None:
        self.scheduler.pause_state = state

    @invariant()
    def holds(self) -> None:
        self.scheduler.check()

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        self.scheduler.pause_state = PauseState.UNPAUSED
        for _ in range(500):
            if not self.scheduler.has_requests():
                break
            self.step()
            self.update()
            self.scheduler.check()
        assert not self.scheduler.requests
        assert self.manager.usage == 0
        if self.config.policy == "fcfs":
            # Those who were not aborted came to their turn in the order in which they had come.
            turns = [name for name in self.admitted if name not in self.passed_by]
            assert turns == sorted(turns)


TestMachine = long_test(Machine)
