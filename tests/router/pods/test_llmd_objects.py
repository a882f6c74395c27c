"""Objects of llm-d, read as an API server lists them, and the models that they choose."""

import json
from collections import Counter
from typing import Any

import pytest

from tests.router.pods.llmd import objective, rewrite, rule
from warmpath.router.pods.llmd_objects import LlmdObjects, Target, choose


def listed(*items: dict[str, Any]) -> bytes:
    return json.dumps(
        {"kind": "List", "metadata": {"resourceVersion": "7"}, "items": items}
    ).encode()


def target(objects: LlmdObjects, model: str) -> str:
    return choose(objects.targets(model), b"key")


def test_objectives_have_numbers_and_the_newer_groups_counts() -> None:
    objects = LlmdObjects()
    newer = listed(objective("urgent", priority=10), objective("plain"))
    older = listed(objective("urgent", priority=-3), objective("batch", priority=-1))
    assert objects.read([newer, older], [b'{"items": null}']) == []
    assert objects.priorities == {"urgent": 10, "plain": 0, "batch": -1}
    assert objects.read([], []) == []
    assert objects.priorities == {}


def test_only_the_named_pools_objects_count() -> None:
    objects = LlmdObjects()
    objectives = listed(objective("ours", priority=1), objective("theirs", "other", priority=1))
    rewrites = listed(rewrite("theirs", rule("m", a=1), pool="other"))
    objects.read([objectives], [rewrites], "pool")
    assert objects.priorities == {"ours": 1}
    assert not objects.targets("m")


def test_a_rule_for_the_model_goes_before_one_for_all_and_an_older_object_before_a_newer_one() -> (
    None
):
    objects = LlmdObjects()
    newer = rewrite("newer", rule(any=1), rule("a", "b", newer=1), created="05")
    older = rewrite("older", rule("b", "c", older=1), rule("c", second=1), created="01")
    assert objects.read([], [listed(newer, older)]) == []
    chosen = {name: target(objects, name) for name in ("a", "b", "c", "d")}
    assert chosen == {"a": "newer", "b": "older", "c": "older", "d": "any"}


def test_a_rule_without_targets_keeps_its_model_from_a_rule_for_all() -> None:
    objects = LlmdObjects()
    alone = {"matches": rule("a")["matches"]}
    objects.read([], [listed(rewrite("one", rule(any=1), alone))])
    assert (target(objects, "a"), target(objects, "b")) == ("", "any")


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        (
            objective("one", priority="high"),
            "Expected `int | null`, got `str` - at `$.spec.priority`",
        ),
        (objective("one") | {"spec": {}}, "missing required field `poolRef` - at `$.spec`"),
        (rewrite("one", rule("m", a=-1)), "`int` >= 0 - at `$.spec.rules[0].targets[0].weight`"),
        (
            rewrite("one", {"matches": [{"model": {"type": "Prefix", "value": "m"}}]}),
            "Invalid enum value 'Prefix' - at `$.spec.rules[0].matches[0].model.type`",
        ),
    ],
    ids=["text", "no pool", "negative", "prefix"],
)
def test_an_object_that_cannot_be_read_is_left_out_and_its_field_is_named(
    broken: dict[str, Any], problem: str
) -> None:
    objects = LlmdObjects()
    objectives, rewrites = [objective("two", priority=1)], [rewrite("two", rule("m", a=1))]
    (objectives if broken["kind"] == "InferenceObjective" else rewrites).append(broken)
    [said] = objects.read([listed(*objectives)], [listed(*rewrites)])
    assert said.startswith(f"{broken['kind']} 'one' is left out: ")
    assert said.endswith(problem)
    assert objects.priorities == {"two": 1}
    assert target(objects, "m") == "a"


def counted(*weights: int | None) -> list[float]:
    """Return the share in percent of each target, of requests with many keys."""
    targets = [Target(str(at), weight) for at, weight in enumerate(weights)]
    found = Counter(choose(targets, b"request-%d" % key) for key in range(4000))
    return [round(found[str(at)] / 40) for at in range(len(weights))]


def test_targets_are_chosen_by_weight_and_one_without_a_weight_beside_others_never() -> None:
    assert counted(90, 10) == pytest.approx([90, 10], abs=2)
    assert counted(1, 0, 3, None) == pytest.approx([25, 0, 75, 0], abs=3)
    assert counted(0, 5)[0] == 0
    for alike in ((None, None), (0, 0)):
        assert counted(*alike) == pytest.approx([50, 50], abs=3)
    assert choose([], b"key") == ""


def test_a_key_keeps_its_target_and_few_keys_change_it_with_the_weights() -> None:
    before, after = ([Target("stable", 100 - part), Target("canary", part)] for part in (10, 20))
    keys = [b"session-%d" % key for key in range(1000)]
    assert [choose(before, key) for key in keys] == [choose(before, key) for key in keys]
    moved = [key for key in keys if choose(before, key) != choose(after, key)]
    assert 50 < len(moved) < 150
    assert {choose(after, key) for key in moved} == {"canary"}
