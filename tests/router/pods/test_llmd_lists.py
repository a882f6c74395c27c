"""Lists of llm-d's objects from an API server that has their kinds or lacks them, and that may refuse."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.router.pods.llmd import NEW, OLD, objective, rewrite, rule
from tests.servers.api_server import NAMESPACE, ApiServer
from tests.waiting import until
from warmpath.process.tasks import cancel
from warmpath.router.config.schema import LlmdTable
from warmpath.router.pods import llmd_lists
from warmpath.router.pods.api_client import Access, ApiClient
from warmpath.router.pods.llmd_objects import OBJECTIVES, REWRITES, LlmdObjects

ROLE = [{"apiGroups": [NEW, OLD], "resources": [OBJECTIVES, REWRITES], "verbs": ["list"]}]
"""The rights of the chart's Role."""


@asynccontextmanager
async def kept(server: ApiServer) -> AsyncIterator[LlmdObjects]:
    objects = LlmdObjects()
    api = ApiClient(Access(server.address))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llmd_lists, "LIST_SECONDS", 0.01)
        table = LlmdTable(objects=NAMESPACE, pool="pool")
        task = asyncio.ensure_future(llmd_lists.keep_listed(objects, table, own=api))
        try:
            yield objects
        finally:
            await cancel([task])
            await api.close()


async def test_objects_are_followed_and_a_kind_that_the_cluster_lacks_has_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with ApiServer(ROLE) as server, kept(server) as objects:
        server.llmd[f"{OBJECTIVES}.{OLD}"] = [objective("urgent", priority=1)]
        await until(lambda: objects.priorities == {"urgent": 1})
        server.llmd[f"{OBJECTIVES}.{NEW}"] = [objective("urgent", priority=2)]
        server.llmd[f"{REWRITES}.{NEW}"] = [rewrite("one", rule("m", a=1))]
        await until(lambda: objects.targets("m"))
        assert objects.priorities == {"urgent": 2}
        server.llmd.clear()
        await until(lambda: not objects.priorities and not objects.targets("m"))
    assert not caplog.records


async def test_a_missing_right_is_named_once_and_the_objects_stay(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "warmpath")
    async with ApiServer(ROLE) as server, kept(server) as objects:
        server.llmd[f"{OBJECTIVES}.{NEW}"] = [objective("urgent", priority=1)]
        await until(lambda: objects.priorities)
        server.unready = 1
        await until(lambda: not server.unready)
        server.rules = [{**ROLE[0], "resources": [OBJECTIVES]}]
        server.llmd[f"{OBJECTIVES}.{NEW}"] = []
        server.refused = 0
        await until(lambda: server.refused > 2)
        assert objects.priorities == {"urgent": 1}
        server.rules = ROLE
        await until(lambda: not objects.priorities)
    refused, again = (record.getMessage() for record in caplog.records)
    assert refused.startswith(
        "llmd.objects (kubernetes ns): list inferencemodelrewrites.llm-d.ai in "
    )
    assert "; its Role lacks the verb 'list' for 'inferencemodelrewrites.llm-d.ai'; " in refused
    assert again == "llmd.objects (kubernetes ns): it answers again"


async def test_an_object_that_cannot_be_read_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async with ApiServer(ROLE) as server, kept(server) as objects:
        broken = objective("broken", priority="high")
        server.llmd[f"{OBJECTIVES}.{NEW}"] = [broken, objective("urgent", priority=1)]
        await until(lambda: objects.priorities)
        server.llmd[f"{OBJECTIVES}.{NEW}"] = [broken, objective("urgent", priority=2)]
        await until(lambda: objects.priorities == {"urgent": 2})
    [said] = [record.getMessage() for record in caplog.records]
    assert said.startswith(
        "llmd.objects (kubernetes ns): InferenceObjective 'broken' is left out: "
    )
