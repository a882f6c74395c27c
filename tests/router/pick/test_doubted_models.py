"""Which failed requests make the models that pods list doubtful, and how often."""

import pytest

from tests.router.pick.weighed import choice, option, placed
from warmpath.router.pick.pick import PAUSE_SECONDS, DoubtedModels, End
from warmpath.router.pick.weigh import Traits


@pytest.mark.parametrize(
    ("model", "traits", "end", "is_doubted"),
    [
        ("m", Traits("text", has_adapter=True), "failed", True),
        ("", Traits("ids"), "failed", True),
        ("m", Traits("text"), "failed", False),
        ("m", Traits("text", has_adapter=True), "finished", False),
        ("m", Traits("text", has_adapter=True), "expired", False),
    ],
)
def test_only_a_failed_request_that_named_no_base_model_is_a_reason(
    model: str, traits: Traits, end: End, is_doubted: bool
) -> None:
    doubted: list[str] = []
    one = placed(choice(option("a", 0)), model=model)
    one.traits = traits
    DoubtedModels(doubted.append).ended(one, end, 5.0)
    assert doubted == [model] * is_doubted


def test_a_flood_of_failures_is_a_reason_once_in_a_while() -> None:
    doubted: list[str] = []
    doubts = DoubtedModels(doubted.append)
    one, other = (placed(choice(option("a", 0)), model=model) for model in ("m", ""))
    one.traits = Traits("text", has_adapter=True)
    for _ in range(1000):
        doubts.ended(one, "failed", 5.0)
        doubts.ended(other, "failed", 5.0)
    assert doubted == ["m", ""]
    doubts.ended(one, "failed", 5.0 + 2 * PAUSE_SECONDS)
    assert doubted == ["m", "", "m"]
