"""The page of results has the kept figures, and a run's figures take the places of those that it measured."""

from pathlib import Path

from warmpath.lab.pages.results import kept, page, updated

PAGE = Path(__file__).parents[3] / "lab" / "bench" / "RESULTS.md"


def test_the_page_is_current_and_short() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(kept())
    assert len(text.splitlines()) <= 120


def test_a_run_replaces_the_figures_of_its_names_only() -> None:
    first, *others = kept()
    run = [{**first, "value": 1.0}, {**first, "name": "a figure that the page lacks"}]
    assert updated([first, *others], run, "c0ffee00") == [
        {**first, "value": 1.0, "commit": "c0ffee00"}, *others,
    ]  # fmt: skip


def test_a_missed_goal_stays_on_the_page() -> None:
    [one] = [
        one
        for one in kept()
        if one["name"] == "Score, 10,000 packed ids, 16 clients, 5 x: answered"
    ]
    assert "≥ 0.9, **missed**" in page([{**one, "ratio": 0.8, "met": False}])
