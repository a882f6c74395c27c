"""Gives state machines more time than other tests have: they run thousands of examples."""

import pytest

MACHINE_SECONDS = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.name == "runTest":
            item.add_marker(pytest.mark.timeout(MACHINE_SECONDS))
