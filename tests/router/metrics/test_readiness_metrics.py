"""Whether the router and its pods are ready, as a scrape shows it."""

from dataclasses import replace

import pytest

from warmpath.router.assemble.scraped import ready_pods
from warmpath.router.pods.table import Pod, PodTable, Status

WELL = Status(healthy=True, reason="well")


@pytest.mark.parametrize(
    ("status", "ready"),
    [
        (WELL, 1.0),
        (Status(), 1.0),
        (replace(WELL, healthy=False), 0.0),
        (replace(WELL, refuses=True), 0.0),
    ],
    ids=["well", "not asked yet", "down", "drains"],
)
def test_a_pod_is_ready_if_requests_may_be_sent_to_it(status: Status, ready: float) -> None:
    pods = PodTable([Pod("pod-1", "h:1", "demo", (), status, has_events=False)])
    [sample] = ready_pods(pods).samples
    assert sample.labels == {"pod": "pod-1", "model": "demo"}
    assert sample.value == ready
