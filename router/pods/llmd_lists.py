"""Lists llm-d's objects in the Kubernetes API, again and again. Needs the right to list both kinds."""

import asyncio
import logging
import time

from warmpath.router.config.schema import LlmdTable
from warmpath.router.pods.api_access import connected
from warmpath.router.pods.api_client import ApiClient
from warmpath.router.pods.discover import SourceError, SourceState
from warmpath.router.pods.llmd_objects import OBJECTIVES, REWRITES, LlmdObjects
from warmpath.router.pods.refusal import Refused

log = logging.getLogger(__name__)

LIST_SECONDS = 10.0
"""Pause between two lists. A watch would take more rights, and a connection for a few objects."""
STAY = "llm-d's objects stay as they were"


async def keep_listed(
    objects: LlmdObjects, table: LlmdTable, *, own: ApiClient | None = None
) -> None:
    """Keep `objects` as a namespace's are, until cancelled; `own` asks, or else new clients."""
    namespace = table.objects
    state = SourceState(f"llmd.objects (kubernetes {namespace})", "", time.monotonic)
    said: list[str] = []
    may_pass = False
    while True:
        try:
            async with connected(own) as api:
                objectives = await api.llmd_objects(namespace, OBJECTIVES)
                rewrites = await api.llmd_objects(namespace, REWRITES)
                problems = objects.read(objectives, rewrites, table.pool)
            state.answered()
            for problem in problems:
                if problem not in said:
                    log.warning("%s: %s", state.name, problem)
            said, may_pass = problems, False
        except SourceError as error:
            # A server that has just started refuses although nothing is wrong.
            may_pass = isinstance(error, Refused) and error.may_pass and not may_pass
            if not may_pass:
                state.failed(str(error), STAY)
        await asyncio.sleep(LIST_SECONDS)
