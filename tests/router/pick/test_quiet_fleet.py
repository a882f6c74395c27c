"""Cold prompts on a fleet with nothing to do, one after the other: who gets them, as speeds are learned."""

from collections import Counter
from collections.abc import Mapping
from random import Random

import pytest

from tests.router.pick.picker_parts import KeyedPrompt, Parts, first
from warmpath.router.pick.picker import Picker
from warmpath.scorer.prefill import PrefillModel

BLOCKS = 100


def picks(parts: Parts, speeds: Mapping[str, float], requests: int, spread: float) -> Counter[str]:
    """Serve requests with nothing in common, each once the one before is over.

    `speeds` are the pods' seconds of prefill over the model's; each prefill is off by `spread`, as one
    standard deviation of its logarithm.
    """
    rng, model, found = Random(7), PrefillModel(), Counter(dict.fromkeys(speeds, 0))
    picker: Picker = parts.picker
    begin = len(parts.placed)
    for number in range(begin, begin + requests):
        prompt = KeyedPrompt(range(number * BLOCKS + 1, (number + 1) * BLOCKS + 1))
        name, choice = parts.choose(prompt=prompt)
        pod = first(choice)
        found[pod] += 1
        parts.now += speeds[pod] * model.seconds(prompt.tokens, 0) * rng.lognormvariate(0, spread)
        picker.first_token(name, parts.now)
        parts.now += 0.3
        picker.found_cached(name, 0, prompt.tokens)
        picker.ended(name, "finished", parts.now)
        parts.now += 1.0
    return found


@pytest.mark.parametrize("spread", [0.0, 0.05, 0.4])
@pytest.mark.parametrize("speed", [0.1, 0.5, 1.0, 3.0])
def test_pods_that_are_alike_share_what_comes(speed: float, spread: float) -> None:
    parts = Parts(pods=4)
    found = picks(parts, dict.fromkeys(("pod-0", "pod-1", "pod-2", "pod-3"), speed), 400, spread)
    # 100 each; by the draw alone, 126 are three standard deviations.
    assert min(found.values()) >= 70, found


def test_pods_that_differ_by_a_few_per_cent_share_what_comes() -> None:
    parts = Parts(pods=2)
    found = picks(parts, {"pod-0": 1.0, "pod-1": 1.07}, 200, 0.1)
    assert min(found.values()) >= 75, found


def test_a_pod_that_was_not_measured_yet_is_no_dearer_than_the_others() -> None:
    parts = Parts(pods=3)
    speeds = {f"pod-{number}": 0.5 for number in range(4)}
    picks(parts, speeds, 100, 0.1)
    parts.pods.append(parts.pod("pod-3"))
    assert picks(parts, speeds, 100, 0.1)["pod-3"] >= 15


def test_a_pod_that_is_twice_as_fast_gets_what_comes_and_the_slow_one_is_tried_again() -> None:
    parts = Parts(pods=2)
    picks(parts, {"pod-0": 1.0, "pod-1": 2.0}, 100, 0.1)
    found = picks(parts, {"pod-0": 1.0, "pod-1": 2.0}, 200, 0.1)
    assert found["pod-0"] >= 180, found
    # The slow one is mended, and nobody says so.
    picks(parts, {"pod-0": 1.0, "pod-1": 1.0}, 1500, 0.1)
    found = picks(parts, {"pod-0": 1.0, "pod-1": 1.0}, 200, 0.1)
    assert min(found.values()) >= 70, found
