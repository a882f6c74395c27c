"""Finds pods through the Kubernetes API: by labels, or by an InferencePool's selector and ports.

Needs the right to list and watch pods (and to get the pool) in the namespace.
"""

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from random import Random
from typing import Any

from aiohttp.http import HttpProcessingError

from warmpath.process.tasks import cancel
from warmpath.router.config import schema as config
from warmpath.router.pods.api_access import connected
from warmpath.router.pods.api_client import ApiClient, body_of
from warmpath.router.pods.discover import STAY, SourceError, SourceState
from warmpath.router.pods.names import FoundPod
from warmpath.router.pods.refusal import LATE, REACH, Refused
from warmpath.router.pods.watched import GONE, ToldError, WatchedPods

log = logging.getLogger(__name__)

RETRY_SECONDS = 2.0
PAGE = 500
"""How many pods a page of a list has."""
FRESH_LISTS = 3
"""How often a list begins anew, at once, whose version the server forgets between two pages."""
WATCH_SECONDS = 120
"""How long a watch lasts at most. The API server ends it, and the next one goes on where it ended."""
LEAST_WATCH = 0.75
"""The least share of WATCH_SECONDS that a watch lasts: routers that begin together do not go on so."""
OVERDUE_SECONDS = 10.0
"""A watch that lasts this much longer than it was to counts as silent: nothing arrives."""
POOL_SECONDS = 2.0
"""Pause between two looks at an InferencePool. A watch of it would take more rights than `get`."""
GRACE_SECONDS = 10.0
"""How long a refusal that a starting server gives has to last before it is a trouble."""
SILENT = (
    "look at the load balancer or proxy before the API server: it drops idle connections silently"
)
NO_EVENT = "watch pods: the answer is no event of pods"
LISTED = "the pods are those of the last list"
"""The effect of a watch that is silent or refused."""
OLD_POOL = "the pods are those of the pool's last labels and ports"
MISSPELT = "%s: 0 pods; look whether the namespace is spelt right"


class KubernetesSource:
    """Lists and watches pods with `api`.

    Without it the source makes a client for each watch, so that renewed tokens, certificates and
    authorities are used within `WATCH_SECONDS`, and at once where the old ones are refused.
    """

    def __init__(
        self,
        pods: config.PodSetSpec,
        *,
        api: ApiClient | None = None,
        rng: Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        where = f"{pods.namespace}/{pods.inference_pool or pods.selector}"
        self.state = SourceState(
            f"pod-sets {pods.name} (kubernetes {where})",
            pods.model,
            clock,
            WATCH_SECONDS + 2 * OVERDUE_SECONDS,
        )
        self._pods = pods
        self._api = api
        self._rng = rng or Random()  # noqa: S311  spreads times
        self._clock = clock
        self._lasts = WATCH_SECONDS * self._rng.uniform(LEAST_WATCH, 1)
        """The seconds that a watch lasts."""
        self._watched = WatchedPods(pods)
        self._standing: set[str] = set()
        """What is wrong although the API answers: the watch is `refused` or `silent` (only lists say how
        the pods change), there is no `pool`, or no `namespace`."""
        self._has_answered = False
        self._refused_since: float | None = None
        """Since when the API has given refusals that may pass."""
        self._goes_on = False
        """Whether the next watch may go on at once, as the last one said something."""
        self._is_hinted = False

    async def look(self) -> Mapping[str, FoundPod]:
        async with connected(self._api) as api:
            await self._ask_pool(api)
            await self._list(api)
            await self._ask_namespace(api)
        return {name: one for name, one in self._watched.found().items() if not one.withheld}

    async def sets(self) -> AsyncIterator[Mapping[str, FoundPod]]:
        # Whoever asks anew may have lost the last set.
        self._watched.version = None
        while True:
            try:
                async with connected(self._api) as api:
                    async for is_change in self._changes(api):
                        self._heard()
                        if is_change:
                            yield self._watched.found()
                if self._goes_on:
                    continue
            except SourceError as error:
                only_listed = self._standing & {"refused", "silent"}
                self._failed(error, LISTED if only_listed else STAY)
                if not isinstance(error, Refused) or error.code != LATE or self.state.trouble:
                    self._watched.version = None
            # The pods stay as they were until the API answers again.
            await asyncio.sleep(RETRY_SECONDS * self._rng.uniform(1, 2))

    def _heard(self) -> None:
        if self._standing:
            self.state.spoke()
            return
        self._has_answered, self._refused_since = True, None
        self.state.answered()

    def _failed(self, error: SourceError, effect: str) -> None:
        """Note a trouble, unless it may be that of a server that has just started."""
        if isinstance(error, Refused) and error.may_pass and self._has_answered:
            if self._refused_since is None:
                self._refused_since = self._clock()
            if self._clock() - self._refused_since < GRACE_SECONDS:
                return
        self.state.failed(str(error), effect, error.advice)

    async def _changes(self, api: ApiClient) -> AsyncIterator[bool]:
        """Watch the pods until the API ends the watch; yield whether what was heard is a change.

        List them before, unless the last watch can go on.
        """
        self._goes_on = False
        if await self._renew_pool(api):
            self._watched.version = None
        while self._watched.needs_list:
            await self._list(api)
            yield True
            await self._ask_namespace(api)
            if self._watched.is_doubtful:
                await asyncio.sleep(RETRY_SECONDS)
        self._watched.begin_watch()
        async with aclosing(self._watch(api)) as changes:
            other_pool = asyncio.ensure_future(self._other_pool(api))
            tasks: list[asyncio.Task[Any]] = [other_pool]
            try:
                while True:
                    change = asyncio.ensure_future(anext(changes, self))
                    tasks = [other_pool, change]
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                    if other_pool.done():
                        other_pool.result()
                        self._watched.version = None
                        return
                    heard = change.result()
                    if heard is self:
                        return
                    yield heard is True
            finally:
                await cancel(tasks)

    async def _other_pool(self, api: ApiClient) -> None:
        """Return once the InferencePool has changed."""
        while True:
            await asyncio.sleep(POOL_SECONDS)
            if await self._renew_pool(api):
                return

    async def _renew_pool(self, api: ApiClient) -> bool:
        """Ask for the InferencePool; return whether it has changed. One that is away keeps its pods."""
        try:
            is_other = await self._ask_pool(api)
        except SourceError as error:
            if not self._watched.pool.selector:
                raise
            self._standing.add("pool")
            self._failed(error, OLD_POOL)
            return False
        if "pool" in self._standing:
            self._standing.remove("pool")
            self._heard()
        return is_other

    async def _list(self, api: ApiClient) -> None:
        """Read all pods, page by page."""
        token, begun = "", 1
        while True:
            try:
                body = await api.page(
                    self._pods.namespace, self._watched.pool.selector, PAGE, token
                )
            except Refused as error:
                if not token or error.code != GONE or begun == FRESH_LISTS:
                    raise
                token, begun = "", begun + 1
                continue
            try:
                token = self._watched.read_page(body, is_first=not token)
            except ValueError as error:
                problem = "list pods: the answer is no list of pods"
                raise SourceError(problem, advice=REACH) from error
            # Each page is a step of the loop of its own, and so is the end.
            await asyncio.sleep(0)
            if not token:
                self._watched.end_list()
                return

    async def _ask_namespace(self, api: ApiClient) -> None:
        """Raise SourceError if there are no pods because their namespace is not there."""
        self._standing.discard("namespace")
        if not self._watched.is_empty:
            return
        namespace = self._pods.namespace
        is_there = await api.has_namespace(namespace)
        if is_there is False:
            self._standing.add("namespace")
            advice = "create it, or correct `namespace`"
            raise SourceError(f"no namespace {namespace!r}", advice=advice)
        if is_there is None and not self._is_hinted:
            self._is_hinted = True
            log.info(MISSPELT, self.state.name)

    async def _watch(self, api: ApiClient) -> AsyncGenerator[bool, None]:
        """Note the pods' changes since the last version; yield after each line whether it was one.

        At the begin it yields False. Ends when the API ends this or lacks the version.
        """
        lasts = math.ceil(self._lasts)
        try:
            answer = await api.watch(
                self._pods.namespace,
                self._watched.pool.selector,
                self._watched.version or "",
                lasts,
                self._lasts + OVERDUE_SECONDS,
            )
            async with answer:
                self._standing.discard("refused")
                if answer.status != 200:
                    self._standing.add("refused")
                    await body_of(answer, "watch", "pods", self._pods.namespace)
                yield False
                async for line in answer.content:
                    is_change = self._watched.read_event(line)
                    self._standing.discard("silent")
                    self._goes_on = True
                    yield is_change
            self._standing.discard("silent")
        except ToldError as error:
            if error.status.code != GONE:
                self._standing.add("silent")
                raise Refused("watch", "pods", self._pods.namespace, error.status) from error
        except TimeoutError as error:
            self._standing.add("silent")
            problem = (
                f"watch pods: the API server did not end a watch of {lasts} s, so what it sends may "
                "not arrive"
            )
            raise SourceError(problem, advice=SILENT) from error
        except HttpProcessingError as error:
            raise SourceError("watch pods: an event is too long", advice=REACH) from error
        except ValueError as error:
            raise SourceError(NO_EVENT, advice=REACH) from error

    async def _ask_pool(self, api: ApiClient) -> bool:
        """Ask for the InferencePool, if there is one; return whether it has changed."""
        name, before = self._pods.inference_pool, self._watched.pool
        if name:
            self._watched.pool = await api.pool(self._pods.namespace, name)
        return self._watched.pool != before
