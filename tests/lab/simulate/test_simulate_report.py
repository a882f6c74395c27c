"""The tables and the page of `warmpath simulate`, for rows made up here."""

from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from warmpath.lab.local import report
from warmpath.lab.simulate import summary
from warmpath.lab.simulate.figures import Figures
from warmpath.lab.simulate.report import write_report
from warmpath.lab.simulate.study import BEST_PUBLISHED
from warmpath.process.command_line import version
from warmpath.scorer.policy import DEFAULT

ROW = Figures(
    trace="a-trace", policy=DEFAULT, pods=4, blocks_per_pod=100, load=0.5, engine="serial", seed=1,
    requests=1000, refused=0, token_hit_ratio=0.2, ceiling=0.4, hit_share=0.5, ttft_mean_s=1.0,
    ttft_p50_s=0.5, ttft_p90_s=2.0, ttft_p95_s=3.0, ttft_p99_s=5.0, tpot_p90_ms=50.0, e2e_p90_s=20.0,
    output_tokens_per_s=700.0, imbalance=1.1, utilisation=0.5, arrivals_s=50.0, makespan_s=60.0, speed=2.0,
    seconds=1.0, pod_prefill_s=[30.0, 31.0, 32.0, 33.0], ttft_curve_s=[0.1, 0.5, 5.0],
    settings={
        "preset": "a-preset", "event_delay": 0.05, "scrape": 0.1, "no_events_share": 0.0,
        "estimate_factor": 1.0, "factors": (), "reports": "all", "report_delay": 0.0, "lost_reports": 0.0, "routers": 1,
        "routers_by": "request", "bookings": "shared", "outage": 0.0, "engine_priority": False, "raw_bursts": False,
        "scale": "", "cold_start": 90.0, "wave": 0.0,
        "queue": False,
    },
)  # fmt: skip

COMMAND = ["warmpath", "simulate", "--traffic", "a b"]
OPTIONS = {"traffic": "a b", "event_delay": 0.05, "trace": None, "queue": [False, True]}


def page(tmp_path: Path, *rows: Figures) -> str:
    return write_report(tmp_path / "report.html", rows, COMMAND, OPTIONS).read_text()


def many(count: int) -> list[Figures]:
    return [
        replace(ROW, policy=f"policy-{number}", ttft_p90_s=1.0 + number) for number in range(count)
    ]


def test_a_share_of_no_ceiling_is_a_dash(tmp_path: Path) -> None:
    nothing = replace(ROW, ceiling=0.0, token_hit_ratio=0.0, hit_share=1.0)
    column = summary.CELL_HEAD.index("of ceiling")
    assert summary.cell_rows({DEFAULT: [ROW]})[0][column] == "0.500"
    assert summary.cell_rows({DEFAULT: [nothing]})[0][column] == "-"
    cells = summary.by_cell([nothing, replace(nothing, pods=8)])
    assert summary.standing_rows(summary.standings(cells))[0][-2:] == ("-", "-")
    # A cell without a ceiling says nothing of the others.
    [one] = summary.standings(summary.by_cell([ROW, replace(nothing, pods=8)]))
    assert (one.hit_share, one.least_hit_share) == (0.5, 0.5)
    assert "<td>-</td>" in page(tmp_path, nothing)


def test_ratios_are_told_of_only_where_there_are_some() -> None:
    told = f"There are no ratios, since {BEST_PUBLISHED}, to which they refer, did not run."
    assert summary.ratios_to([ROW]) == told
    theirs = replace(ROW, policy=BEST_PUBLISHED)
    assert summary.ratios_to([ROW, theirs]).startswith(f"Ratios are to {BEST_PUBLISHED}; ")


def test_settings_are_sentences(tmp_path: Path) -> None:
    plain = page(tmp_path, ROW)
    assert "Cache events reach the router 0.05 s late" in plain
    assert "Ties are broken by seed 1 alone." in plain
    assert "of the pods never come" not in plain
    settings = {
        **ROW.settings, "no_events_share": 0.25, "estimate_factor": 3.0, "raw_bursts": True
    }  # fmt: skip
    told = page(tmp_path, *(replace(ROW, seed=seed, settings=settings) for seed in (1, 2, 3)))
    assert "The events of 25% of the pods never come." in told
    assert "The router expects prefill to last 3 times as long as it does." in told
    assert "Requests of one time stamp come at once." in told
    assert "Figures are medians over 3 seeds." in told
    assert not any(name in told for name in settings if "_" in name)


def test_the_page_says_what_was_left_out_and_where_requests_are_a_crowd(tmp_path: Path) -> None:
    plain = page(tmp_path, ROW)
    told = page(tmp_path, replace(ROW, bad_lines=3, refused=7, arrivals_s=30.0))
    for sentence in (
        "Lines left out, since they are wrong: 3.",
        "7 requests fit into no pod and were left out.",
        "The 1,000 requests come within 30 s, while an answer takes up to 20 s (p90): that is a crowd",
    ):
        assert sentence in told
        assert sentence not in plain
    assert "that is a crowd" not in plain


@pytest.mark.parametrize(
    ("queue", "reports", "is_told"),
    [(True, "ends", True), (True, "none", True), (True, "all", False), (False, "none", False)],
)
def test_a_queue_without_reported_first_tokens_is_said_to_hold_nothing(
    queue: bool, reports: str, is_told: bool
) -> None:
    queued = replace(ROW, settings={**ROW.settings, "queue": queue, "reports": reports})
    told = summary.remarks({DEFAULT: [ROW], "another": [queued]})
    assert told == ["The queue holds nothing without reported first tokens."] * is_told


def test_several_routers_are_told_with_what_a_session_is() -> None:
    settings = {**ROW.settings, "routers": 3}
    assert summary.conditions(settings) == [
        "Requests reach 3 routers, in turn; their bookings are shared."
    ]
    [told] = summary.conditions({**settings, "routers_by": "session"})
    assert "a session (the log's, or else one guessed from prompts' blocks)" in told


def test_the_best_few_and_the_default_are_named_and_it_is_said(tmp_path: Path) -> None:
    slow = replace(ROW, ttft_p90_s=99.0)
    told = page(tmp_path, *many(9), slow)
    assert f"Named are the 5 policies with the least p90, and {DEFAULT}; " in told
    assert "the 4 others" in told
    few = page(tmp_path, *many(3), slow)
    assert "Named are" not in few


def test_a_pods_bars_stand_around_its_tick() -> None:
    axes = Figure().add_subplot()
    report.pod_bars(axes, {"one": [1.0, 2.0], "two": [3.0, 4.0], "three": [5.0, 6.0]})
    centres = [bar.get_x() + bar.get_width() / 2 for bar in axes.patches]
    for pod in range(2):
        assert sum(centres[pod::2]) / 3 == pytest.approx(pod)
    assert all(place == round(place) for place in axes.get_xticks())


def test_logarithmic_axes_have_plain_numbers() -> None:
    figure = Figure()
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot([0.3, 30.0], [0, 1])
    report.logarithmic(axes, "x")
    figure.canvas.draw()
    shown = [label.get_text() for label in axes.get_xticklabels()]
    assert [text for text in shown if 0.3 <= float(text) <= 30] == [
        "0.5",
        "1",
        "2",
        "5",
        "10",
        "20",
    ]


def test_a_plot_has_its_title_as_text_and_the_pages_colours() -> None:
    drawn = report.plot("a & b", lambda axes: axes.set_xlabel("seconds"))
    assert "<figcaption>a &amp; b</figcaption>" in drawn
    assert 'aria-label="a &amp; b"' in drawn
    assert "currentColor" in drawn
    assert report.INK not in drawn


def test_a_page_says_how_it_was_made(tmp_path: Path) -> None:
    told = page(tmp_path, ROW, replace(ROW, seed=7))
    assert "<code>warmpath simulate --traffic &#x27;a b&#x27;</code>" in told
    assert "<dd>traffic a b, event-delay 0.05, queue off,on</dd>" in told
    assert "<dd>1, 7</dd>" in told
    assert f"warmpath {version()}" in told
