"""The examples of docs/start/library.md, and the client of docs/explain/picking.md, work as they are written there."""

import asyncio
import doctest
import re
from pathlib import Path
from typing import Any

from tests.docs.test_pages import ROOT
from tests.indexer.consistent import check
from tests.lab.simworker.local_worker import LocalWorker
from tests.router.running_router import running_router
from warmpath import Index

LIBRARY = (ROOT / "docs" / "start" / "library.md").read_text(encoding="utf-8")
PICK = (ROOT / "docs" / "explain" / "picking.md").read_text(encoding="utf-8")
ROUTER = "127.0.0.1:7400"


def tables(worker: LocalWorker) -> str:
    return f"""
        [[models]]
        name = "demo"
        [[pods]]
        id = "pod-1"
        model = "demo"
        address = "{worker.address}"
        events = "{worker.events}"
        replay = "{worker.replay}"
        topic = "kv"
        """


def run(examples: str) -> dict[str, Any]:
    """Run a page's examples and return their names. Raises at the first that shows something else."""
    parsed = doctest.DocTestParser().get_doctest(examples, {}, "page", None, 0)
    assert len(parsed.examples) > 25
    runner = doctest.DebugRunner(verbose=False)
    runner.run(parsed, clear_globs=False)
    return parsed.globs


async def test_every_example_of_the_page_shows_what_the_page_says(tmp_path: Path) -> None:
    async with (
        LocalWorker() as worker,
        running_router(tmp_path, tables(worker)) as (router, _),
    ):
        names = await asyncio.to_thread(run, LIBRARY.replace(ROUTER, router.address))
        # The function of the page follows the worker.
        index, fed = Index("demo", max_bytes=1 << 24), asyncio.Event()
        following = asyncio.create_task(
            asyncio.to_thread(names["follow"], index, "pod-1", worker.events, fed.is_set)
        )
        number = 0
        while not (index.pods and index.blocks("pod-1")):
            number += 1
            await worker.generate(prompt=list(range(number, number + 20)))
        fed.set()
        await following
        check(index.ingest)


async def test_the_client_of_the_page_on_picks_does_what_the_page_says(tmp_path: Path) -> None:
    code = re.findall(r"```python\n(.*?)```", PICK, re.DOTALL)[0]
    async with (
        LocalWorker() as worker,
        running_router(tmp_path, tables(worker)) as (router, _),
    ):
        names: dict[str, Any] = {}
        await asyncio.to_thread(exec, code.replace(ROUTER, router.address), names)
        assert names["best"].pod == "pod-1"
        assert names["best"].address == worker.address
        assert names["known"] is True
