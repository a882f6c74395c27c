"""The comparison of another gateway's choices with the policy's."""

from math import isclose

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.router.pick.weighed import BLOCK, TOKENS, choice, follow, option, placed
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.diagnosis.shadow import ShadowComparison

PODS = "abc"
Asked = tuple[list[int], list[float], int]
"""Blocks held by each pod, seconds of wait for each, and the pod that the gateway chose."""
ASKED: st.SearchStrategy[Asked] = st.tuples(
    st.lists(st.integers(0, TOKENS // BLOCK - 1), min_size=3, max_size=3),
    st.lists(st.floats(0, 9), min_size=3, max_size=3),
    st.integers(0, 2),
)


def compared(asked: list[Asked]) -> pb.Shadow:
    comparison = ShadowComparison()
    for held, waits, chosen in asked:
        made = choice(
            *(
                option(pod, BLOCK * blocks, wait=wait)
                for pod, blocks, wait in zip(PODS, held, waits, strict=True)
            )
        )
        one = placed(made, shadow=True)
        follow(one, PODS[chosen])
        comparison.add(one)
    (row,) = comparison.rows()
    return row


def test_a_request_sent_to_a_colder_pod_would_have_found_more() -> None:
    # Warm: 800 of 1,600 tokens, 0.8 s of prefill. Cold: nothing, 1.6 s.
    row = compared([([50, 0, 0], [0.0, 0.0, 0.0], 1), ([50, 0, 0], [0.0, 0.0, 0.0], 0)])
    assert (row.requests, row.agreed, row.better, row.worse, row.exact) == (2, 1, 1, 0, 2)
    assert (row.better_tokens, row.better_prompt_tokens) == (800, TOKENS)
    assert (row.chosen_tokens, row.warmpath_tokens) == (800, 1600)
    assert (row.saved_p50, row.saved_p90) == (0.8, 0.8)
    # The gateway gave 1.6 s and 0.8 s to two of three pods; the policy all of 1.6 s to one.
    assert isclose(row.chosen_imbalance, 1.6 / 0.8)
    assert isclose(row.warmpath_imbalance, 3.0)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(ASKED, min_size=1, max_size=30))
def test_sums_quantiles_and_balances_are_those_of_the_requests(asked: list[Asked]) -> None:
    row = compared(asked)
    gained, saved = [], []
    work = [[0.0, 0.0] for _ in PODS]
    for held, waits, chosen in asked:
        prefill = [(TOKENS - BLOCK * blocks) / 1000 for blocks in held]
        costs = [wait + seconds for wait, seconds in zip(waits, prefill, strict=True)]
        ours = costs.index(min(costs))
        gained.append(BLOCK * (held[ours] - held[chosen]))
        saved.append(costs[chosen] - costs[ours])
        work[chosen][0] += prefill[chosen]
        work[ours][1] += prefill[ours]
    saved.sort()
    assert row.requests == len(asked)
    assert row.better == sum(more > 0 for more in gained)
    assert row.better_tokens == sum(more for more in gained if more > 0)
    assert row.worse_tokens == -sum(more for more in gained if more < 0)
    assert isclose(row.saved_p50, saved[len(saved) // 2], abs_tol=1e-9)
    assert isclose(row.saved_p90, saved[int(0.9 * len(saved))], abs_tol=1e-9)
    for told, at in ((row.chosen_imbalance, 0), (row.warmpath_imbalance, 1)):
        seconds = [one[at] for one in work]
        assert isclose(told, max(seconds) / (sum(seconds) / 3), abs_tol=1e-9)


def test_a_removed_pod_counts_no_longer_in_the_balance() -> None:
    comparison = ShadowComparison()
    one = placed(choice(option("a"), option("b")), shadow=True)
    follow(one, "a")
    comparison.add(one)
    comparison.forget("b")
    (row,) = comparison.rows()
    assert row.chosen_imbalance == 1.0
