"""A process of several that ends by itself is started again, and the log says how it ended."""

import asyncio

import pytest

from warmpath.router.processes import Processes


@pytest.mark.parametrize(
    ("deed", "said"),
    [
        ("os.kill(os.getpid(), 9)", "process 0 was ended by the signal 9 (Killed)"),
        ("sys.exit(3)", "process 0 ended with status 3"),
    ],
)
async def test_the_log_says_how_a_process_has_ended(
    deed: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    script = f"import os, sys; print('it serves', flush=True); {deed}"
    processes = Processes(1, lambda _: ("-c", script), drain_seconds=1.0)
    running = asyncio.create_task(processes.run(lambda: None))
    while f"{said}; it is started again" not in caplog.text:
        await asyncio.sleep(0.01)
    processes.end()
    await running
