"""The rules that know nothing of caches do what their names say."""

from warmpath.lab.local.rules import LeastLoad, RoundRobin


async def test_round_robin_goes_round() -> None:
    policy = RoundRobin(3)
    assert [(await policy.choose(b"")).pods[0] for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


async def test_least_load_takes_the_pod_with_the_fewest_in_flight() -> None:
    policy = LeastLoad(3)
    choices = [await policy.choose(b"") for _ in range(3)]
    assert [choice.pods[0] for choice in choices] == [0, 1, 2]
    await policy.finished(choices[1], 1, 0)
    assert (await policy.choose(b"")).pods[0] == 1


async def test_least_load_breaks_ties_by_who_waited_longest() -> None:
    policy = LeastLoad(2)
    for expected in (0, 1, 0, 1):
        choice = await policy.choose(b"")
        assert choice.pods[0] == expected
        await policy.finished(choice, expected, None)


async def test_fall_backs_are_all_other_pods_and_a_request_counts_where_it_went() -> None:
    assert (await RoundRobin(3).choose(b"")).pods == (0, 1, 2)
    policy = LeastLoad(3)
    choice = await policy.choose(b"")
    assert choice.pods == (0, 1, 2)
    await policy.fell_back(choice, 0, 1)
    assert [(await policy.choose(b"")).pods[0] for _ in range(2)] == [2, 0]
    await policy.finished(choice, 1, 0)
    assert (await policy.choose(b"")).pods[0] == 1
