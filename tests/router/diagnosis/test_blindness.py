"""Blind spots: found by what pods showed and engines reported, and said once an hour."""

from tests.router.pick.picker_parts import Parts
from warmpath.router.diagnosis.attribution import Attribution, Evidence, Row
from warmpath.router.diagnosis.blindness import COMPARED, HOUR, Blindness
from warmpath.router.diagnosis.mispredictions import ENOUGH
from warmpath.router.pick.weigh import Traits
from warmpath.router.pods.table import PodTable

CHAT = Traits("chat")


class Stand:
    """Two pods with events, and what is known of their requests."""

    def __init__(self, *, has_events: bool = True) -> None:
        self.parts = Parts(2)
        self.attribution = Attribution()
        self.troubles: dict[str, str] = {}
        for pod in self.parts.pods:
            pod.has_events = has_events
            self.attribution._rows[pod.id, "m"] = Row(pod.id, "m")
        pods = PodTable(self.parts.pods)
        self.blindness = Blindness(pods, self.attribution, lambda: self.troubles)

    def answered(self, requests: int, predicted: int, found: int) -> None:
        """Let each pod answer requests of 1,000 tokens each."""
        for row in self.attribution.rows():
            row.requests += requests
            row.prompt_tokens += 1000 * requests
            for _ in range(requests):
                row.evidence.over("finished")
                row.evidence.found_cached(CHAT, 1000, predicted, found, 1000)

    def kinds(self) -> list[str]:
        return [one.kind for one in self.blindness.spots()]


def test_a_model_whose_texts_cannot_be_tokenised_is_a_spot_while_that_lasts() -> None:
    stand = Stand()
    stand.troubles["m"] = "the hub is down"
    [spot] = stand.blindness.spots()
    assert (spot.model, spot.kind) == ("m", "tokenizer")
    assert "the hub is down" in spot.text
    stand.troubles.clear()
    assert not stand.blindness.spots()


def test_pods_that_answer_and_never_show_a_block_make_picks_blind() -> None:
    stand = Stand()
    stand.answered(ENOUGH // 2 - 1, 0, 0)
    assert not stand.kinds()
    stand.blindness.picked("m", None)
    assert not stand.blindness.counts
    stand.answered(1, 0, 0)
    assert stand.kinds() == ["blind"]
    stand.blindness.picked("m", None)
    stand.blindness.picked("m", "template")
    stand.blindness.picked("other", None)
    assert stand.blindness.counts == {"blocks": 1, "template": 1}
    assert Stand(has_events=False).kinds() == ["no-events"]


def test_pods_without_events_are_said_with_the_option_that_turns_them_on() -> None:
    stand = Stand()
    assert not stand.kinds()
    stand.parts.pods[1].has_events = False
    [spot] = stand.blindness.spots()
    assert spot.kind == "no-events"
    assert f"1 of its 2 pods send no events, such as {stand.parts.pods[1].id}" in spot.text
    assert "Do this: start it with `--kv-events-config" in spot.text


def test_prompts_that_are_not_read_are_a_spot_while_they_are_a_tenth_of_all() -> None:
    stand = Stand()
    for blind in ("body", "time"):
        for _ in range(4):
            stand.blindness.picked("m", blind, "no API is known")
        assert not stand.kinds(), "a few are no lasting fault"
        for _ in range(3):
            stand.blindness.picked("m", blind, f"{blind} is missing")
        [spot] = stand.blindness.spots()
        assert spot.kind == blind
        assert f"of its last prompts were not read ({blind} is missing)" in spot.text
        for _ in range(200):
            stand.blindness.picked("m", None)
        assert not stand.kinds()


def test_lasting_differences_from_what_engines_report_are_a_spot() -> None:
    for predicted, found, expected in ((500, 500, []), (500, 440, ["gap"]), (0, 800, ["gap"])):
        stand = Stand()
        for pod in stand.parts.pods:
            pod.has_events = True
            pod.ranks[0].take_figures(pod.ranks[0].layout, 1, 100, 50)
        stand.answered(COMPARED // 2, predicted, found)
        assert [kind for kind in stand.kinds() if kind == "gap"] == expected
    joined = Evidence.joined(row.evidence for row in stand.attribution.rows())
    assert joined.of(lambda _: True).reports == COMPARED


def test_each_spot_is_said_when_it_is_found_and_each_hour() -> None:
    stand = Stand(has_events=False)
    stand.troubles["m"] = "the hub is down"
    assert [one.kind for one in stand.blindness.news(0.0)] == ["tokenizer", "no-events"]
    assert not stand.blindness.news(HOUR - 1)
    stand.troubles["n"] = "no file"
    assert [one.model for one in stand.blindness.news(HOUR - 1)] == ["n"]
    assert [one.model for one in stand.blindness.news(HOUR)] == ["m", "m"]
