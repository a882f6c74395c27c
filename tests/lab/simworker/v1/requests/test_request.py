"""Requests, with tokens or with known lengths alone, and the queues in which they wait."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.lab.simworker.state_machines import long_test
from tests.lab.simworker.v1.small_cache import admit, manager, request, table
from warmpath.lab.simworker.v1.hashing.algorithms import sha256_cbor
from warmpath.lab.simworker.v1.hashing.block_hash import get_request_block_hasher
from warmpath.lab.simworker.v1.hashing.block_hash_view import (
    BlockHashListWithBlockSize,
    resolve_block_hashes,
)
from warmpath.lab.simworker.v1.hashing.extra_keys import LoRARequest
from warmpath.lab.simworker.v1.requests.request import Request, SamplingParams
from warmpath.lab.simworker.v1.requests.trace_request import TraceRequest
from warmpath.lab.simworker.v1.scheduling.request_queue import (
    PriorityRequestQueue,
    RequestQueue,
    SchedulingPolicy,
    create_request_queue,
)


@given(st.lists(st.integers(0, 99), min_size=1, max_size=30), st.integers(0, 30))
def test_hashes_do_not_depend_on_when_tokens_came(tokens: list[int], prompt: int) -> None:
    at_once = request("a", tokens)
    one_by_one = request("b", tokens[:prompt])
    several = request("c", tokens[:prompt])
    for token in tokens[prompt:]:
        one_by_one.append_output_token_ids(token)
    several.append_output_token_ids(tokens[prompt:])
    assert at_once.block_hashes == one_by_one.block_hashes == several.block_hashes
    assert len(at_once.block_hashes) == len(tokens) // 4
    assert one_by_one.all_token_ids == several.all_token_ids == tokens
    assert one_by_one.num_output_tokens == len(tokens[prompt:])
    assert one_by_one.prompt_token_ids == tokens[:prompt]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SamplingParams(max_tokens=0), "max_tokens: 0, at least 1"),
        (lambda: LoRARequest("a", 0, "p"), "lora_int_id: 0, at least 1"),
        (lambda: get_request_block_hasher(0, sha256_cbor), "hash_block_size: 0, at least 1"),
        (lambda: TraceRequest("a", 0, [], 4, 1), "num_prompt_tokens: 0, at least 1"),
        (lambda: TraceRequest("a", 4, [b"a"], 0, 1), "hash_block_size: 0, at least 1"),
        (lambda: TraceRequest("a", 8, [b"a"], 4, 1), "block_hashes: 1 for 2 full blocks"),
        (lambda: TraceRequest("a", 1, [], 4, 1).append_output_tokens(-1), "num_tokens: -1"),
        (lambda: BlockHashListWithBlockSize([], 4, 6), "target_block_size: 6 is not a multiple"),
    ],
)
def test_numbers_out_of_range_are_refused(build: object, message: str) -> None:
    assert callable(build)
    with pytest.raises(ValueError, match=message):
        build()


def test_a_view_of_larger_blocks_grows_with_the_list() -> None:
    hashes = [b"a", b"b", b"c", b"d", b"e"]
    view = resolve_block_hashes(hashes, 2, 4)
    assert (len(view), list(view), view[0], view[-1], view[0:2]) == (
        2, [b"b", b"d"], b"b", b"d", [b"b", b"d"],
    )  # fmt: skip
    hashes.append(b"f")
    assert list(view) == [b"b", b"d", b"f"]
    with pytest.raises(IndexError, match="no block 3 among 3"):
        view[3]
    assert resolve_block_hashes(view, 2, 4) is view
    with pytest.raises(AssertionError, match="block_size: 6, and the view's 2 hashes of 2 tokens"):
        resolve_block_hashes(view, 2, 6)
    assert resolve_block_hashes(hashes, 4, 4) is hashes


def trace(name: str, prompt: int, hashes: list[bytes]) -> TraceRequest:
    return TraceRequest(name, prompt, hashes, 4, 100)


def test_a_request_without_tokens_is_cached_by_the_hashes_it_was_given() -> None:
    cache = manager(20)
    assert admit(cache, trace("a", 10, [b"1", b"2"])) == 0
    assert admit(cache, trace("b", 9, [b"1", b"2", b"passed over"])) == 8
    assert admit(cache, trace("c", 9, [b"1", b"3"])) == 4
    cache.check()


def test_generated_blocks_without_tokens_are_a_requests_own() -> None:
    cache = manager(30)
    first, second = trace("a", 6, [b"1"]), trace("b", 6, [b"1"])
    for one in (first, second):
        admit(cache, one)
        one.append_output_tokens(10)
        cache.allocate_slots(one, 10)
        one.num_computed_tokens += 10
    assert first.num_output_tokens == 10
    assert len(first.block_hashes) == 4
    assert first.block_hashes[0] == second.block_hashes[0] == b"1"
    assert not set(first.block_hashes[1:]) & set(second.block_hashes[1:])
    shared, own = table(cache, second)[0][:1], table(cache, second)[0][1:]
    assert shared == table(cache, first)[0][:1]
    assert not set(own) & set(table(cache, first)[0])
    # Preempted, it finds what it had generated.
    cache.free(first)
    first.num_computed_tokens = 0
    assert cache.get_computed_blocks(first)[1] == 12
    cache.check()


def test_events_about_a_request_without_tokens_carry_none() -> None:
    cache = manager(20, enable_kv_cache_events=True)
    one = trace("a", 10, [b"1", b"2"])
    admit(cache, one)
    one.append_output_token_ids([7, 8])
    one.append_output_token_ids(9)
    (event,) = cache.take_events()
    assert (event.token_ids, len(event.block_hashes)) == ([], 2)  # type: ignore[union-attr]
    assert one.num_tokens == 13


@pytest.mark.parametrize("queue", [RequestQueue(), PriorityRequestQueue()])
def test_an_empty_queue_has_no_first(queue: RequestQueue) -> None:
    assert not queue
    with pytest.raises(IndexError):
        queue.peek_request()
    with pytest.raises(IndexError):
        queue.pop_request()


class Queues(RuleBasedStateMachine):
    """Either queue does what a list does that is sorted anew each time."""

    policy = SchedulingPolicy.FCFS

    def __init__(self) -> None:
        super().__init__()
        self.queue = create_request_queue(self.policy)
        self.model: list[Request] = []
        self.made = 0

    def new(self, priority: int, arrival: int) -> Request:
        self.made += 1
        return request(str(self.made), [1], priority=priority, arrival_time=arrival)

    def sort(self) -> None:
        if self.policy is SchedulingPolicy.PRIORITY:
            self.model.sort(key=lambda one: (one.priority, one.arrival_time, one.request_id))

    @rule(priority=st.integers(0, 3), arrival=st.integers(0, 3))
    def add(self, priority: int, arrival: int) -> None:
        one = self.new(priority, arrival)
        self.queue.add_request(one)
        self.model.append(one)

    @rule(priorities=st.lists(st.integers(0, 3), max_size=3), arrival=st.integers(0, 3))
    def prepend(self, priorities: list[int], arrival: int) -> None:
        several = [self.new(priority, arrival) for priority in priorities]
        if len(several) == 1:
            self.queue.prepend_request(several[0])
        else:
            self.queue.prepend_requests(several)
        self.model[:0] = reversed(several)

    @precondition(lambda self: self.model)
    @rule()
    def pop(self) -> None:
        assert self.queue.peek_request() is self.model[0]
        assert self.queue.pop_request() is self.model.pop(0)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        several = data.draw(st.lists(st.sampled_from(self.model), unique_by=id, max_size=3))
        self.queue.remove_requests([*several, request("not there", [1])])
        self.model = [one for one in self.model if one not in several]

    @invariant()
    def is_the_model(self) -> None:
        self.sort()
        self.queue.check()
        assert list(self.queue) == self.model
        assert len(self.queue) == len(self.model)
        assert bool(self.queue) == bool(self.model)


class PriorityQueues(Queues):
    policy = SchedulingPolicy.PRIORITY


TestQueues = long_test(Queues)
TestPriorityQueues = long_test(PriorityQueues)
