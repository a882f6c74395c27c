"""Whether a vLLM sleeps, by its metrics and its pages."""

import json
from collections.abc import Mapping

import pytest

from warmpath.router.pods.sleep import ASLEEP, PATHS, PAUSED, UNNAMED, Answer, Sleep, sleep_of

AWAKE = (1, 0, 0)
LEVEL_0, LEVEL_1, LEVEL_2 = (0, 0, 0), (0, 1, 0), (0, 0, 1)

Answers = Mapping[str, object]
"""The JSON of each page that is served; None: it does not answer in time."""
OLD: Answers = {"/is_sleeping": {"is_sleeping": False}}
NEW: Answers = OLD | {"/is_paused": {"is_paused": False}}
SLEEPING: Answers = {"/is_sleeping": {"is_sleeping": True}}
HUNG: Answers = dict.fromkeys(PATHS)


def page(states: tuple[int, int, int], form: str = "{} {}.0") -> bytes:
    named = zip(("awake", *ASLEEP), states, strict=False)
    series = (
        (f'vllm:engine_sleep_state{{sleep_state="{state}",engine="0"}}', value)
        for state, value in named
    )
    return "\n".join(form.format(*one) for one in series).encode()


async def probe(
    sleep: Sleep,
    metrics: bytes,
    answers: Answers,
    *,
    anew: bool = False,
    asked: list[str] | None = None,
) -> str:
    async def ask(path: str) -> Answer:
        if asked is not None:
            asked.append(path)
        if path not in answers:
            return Answer(404, b"{}")
        if answers[path] is None:
            return Answer(0, b"", TimeoutError())
        return Answer(200, json.dumps(answers[path]).encode())

    await sleep.look(metrics, ask, anew=anew)
    return sleep.state


@pytest.mark.parametrize("form", ["{} {}", "{} {}.0", "{} {}.0 1700000000000", "{}\t{}e0\r"])
def test_the_gauges_tell_each_state_in_all_forms_of_the_format(form: str) -> None:
    states = (AWAKE, LEVEL_0, LEVEL_1, LEVEL_2)
    found = [sleep_of(page(one, form)) for one in states]
    assert found == ["", PAUSED, "weights_offloaded", "discard_all"]
    name = 'sleep_state="weights_offloaded"'
    odd = page(LEVEL_1).replace(name.encode(), b'model_name="a}b",' + name.encode())
    assert sleep_of(odd) == "weights_offloaded"
    assert sleep_of(b"") == sleep_of(page((7, 7, 7))) == ""


@pytest.mark.parametrize("pages", [OLD, NEW])
async def test_an_engine_of_which_only_the_weights_woke_still_sleeps(pages: Answers) -> None:
    sleep = Sleep()
    assert await probe(sleep, page(AWAKE), pages, anew=True) == ""
    assert await probe(sleep, page(LEVEL_1), pages) == "weights_offloaded"
    assert await probe(sleep, page(AWAKE), pages | SLEEPING) == "weights_offloaded"
    assert await probe(sleep, page(AWAKE), pages | SLEEPING) == "weights_offloaded"
    assert sleep.has_no_cache
    assert await probe(sleep, page(AWAKE), pages) == ""


async def test_an_engine_without_the_gauge_sleeps_by_its_page_and_has_no_cache() -> None:
    sleep = Sleep()
    assert await probe(sleep, b"x 1", SLEEPING, anew=True) == UNNAMED
    assert sleep.has_no_cache
    assert "/is_sleeping" in sleep.reason
    assert await probe(sleep, b"x 1", OLD) == ""


async def test_a_paused_engine_keeps_its_cache_until_it_goes_on() -> None:
    sleep = Sleep()
    # A newer vLLM that is paused says that it sleeps, too.
    paused = {"/is_paused": {"is_paused": True}} | SLEEPING
    assert await probe(sleep, page(AWAKE), paused, anew=True) == PAUSED
    assert not sleep.has_no_cache
    assert await probe(sleep, page(AWAKE), HUNG) == PAUSED, "nothing says that it goes on"
    assert await probe(sleep, page(AWAKE), NEW) == ""


@pytest.mark.parametrize("answers", [{}, HUNG, {path: {"error": "what?"} for path in PATHS}])
async def test_pages_that_are_missing_hang_or_mean_something_else_are_not_asked_for_each_time(
    answers: Answers,
) -> None:
    sleep = Sleep()
    assert await probe(sleep, page(AWAKE), NEW, anew=True) == ""
    asked: list[str] = []
    for _ in range(2):
        assert await probe(sleep, page(AWAKE), answers, asked=asked) == ""
    assert asked == list(PATHS)


async def test_metrics_that_cannot_be_read_change_nothing() -> None:
    sleep = Sleep()
    for states in (LEVEL_0, LEVEL_2):
        state = await probe(sleep, page(states), {})
        assert state
        assert await probe(sleep, b"", {}) == state
    assert await probe(sleep, page(AWAKE), {}) == ""


async def test_an_engine_without_metrics_that_was_paused_goes_on() -> None:
    sleep = Sleep()
    assert await probe(sleep, b"", {"/is_paused": {"is_paused": True}}, anew=True) == PAUSED
    assert await probe(sleep, b"", NEW) == ""
