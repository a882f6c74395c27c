"""Refused calls in the log."""

import pytest

from router.refusal_log import RefusalLog, Refusals


def test_calls_that_were_refused_since_the_last_look_are_told_by_limit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused = {"limits.one": 7, "limits.two": 0}
    log = RefusalLog(
        {limit: Refusals(lambda limit=limit: refused[limit], "a-section") for limit in refused}
    )
    log.look()
    assert not caplog.messages, "those were refused before"
    refused["limits.one"] += 3
    log.look()
    assert caplog.messages == ["3 calls were refused by limits.one: docs/operations.md#a-section"]
    log.look()
    assert len(caplog.messages) == 1
    refused["limits.two"] += 1
    log.look()
    assert caplog.messages[1].startswith("1 calls were refused by limits.two")
