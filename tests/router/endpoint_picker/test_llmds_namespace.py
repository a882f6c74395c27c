"""A router that reads llm-d's objects: classes of exchanges by numbers, and models by weights."""

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.router.endpoint_picker.gateway import PODS, Gateway, asking, completion
from tests.router.endpoint_picker.test_picker_queue import QUEUE, fill, wait_for
from tests.router.pick_stand import QUIET
from tests.router.pods.llmd import NEW, objective, rewrite, rule
from tests.servers.api_server import NAMESPACE, ApiServer
from tests.waiting import until
from warmpath.router.pods import api_access
from warmpath.router.pods.api_client import Access, ApiClient
from warmpath.router.pods.llmd_objects import OBJECTIVES, REWRITES, LlmdObjects

TABLES = f'[llmd]\nobjects = "{NAMESPACE}"\n'


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiServer]:
    """Serve an API to which the router connects by itself."""
    async with ApiServer() as server:

        async def connect() -> ApiClient:
            return ApiClient(Access(server.address))

        monkeypatch.setattr(api_access, "connect", connect)
        yield server


@pytest.fixture
def is_read(monkeypatch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """Return whether the router has read the objects."""
    reads = []
    read = LlmdObjects.read

    def reading(self: LlmdObjects, *lists: object) -> list[str]:
        reads.append(self)
        return read(self, *lists)  # type: ignore[arg-type]

    monkeypatch.setattr(LlmdObjects, "read", reading)
    return lambda: bool(reads)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("first", "high"),
        ("second", "low"),
        ("zero", "normal"),
        ("batch", "low"),
        ("none", "normal"),
    ],
)
async def test_an_objectives_number_is_so_many_classes_above_the_usual_one(
    tmp_path: Path, cluster: ApiServer, is_read: Callable[[], bool], name: str, kind: str
) -> None:
    numbers = {"first": 10, "second": -1, "zero": 0, "batch": 1}
    found = [objective(one, priority=number) for one, number in numbers.items()]
    cluster.llmd[f"{OBJECTIVES}.{NEW}"] = found
    async with asking(tmp_path, tables=QUEUE + TABLES) as gateway:
        await until(is_read)
        await fill(gateway)
        one = gateway.exchange()
        await one.request(("x-llm-d-inference-objective", name))
        await one.body(completion())
        await wait_for(gateway, kind, 1)
        one.call.cancel()
        await wait_for(gateway, kind, 0)


async def model_of(gateway: Gateway, body: bytes, *headers: tuple[str, str]) -> str:
    """Return the model that the engine is asked for."""
    one = gateway.exchange()
    await one.request(*headers)
    await one.body(body)
    await one.destination()
    found = json.loads(await one.passed())["model"]
    assert isinstance(found, str)
    return found


async def test_a_session_or_else_a_request_keeps_the_model_that_a_rewrite_gives_it(
    tmp_path: Path, cluster: ApiServer, is_read: Callable[[], bool]
) -> None:
    weighed = rewrite("one", rule("gpt", "own", demo=1, tuned=1))
    cluster.llmd[f"{REWRITES}.{NEW}"] = [weighed]
    picker = 'rewrites = { "own" = "demo" }'
    async with asking(tmp_path, picker=picker, tables=TABLES + QUIET + PODS) as gateway:
        await until(is_read)
        by_session, by_request, by_body = set(), set(), set()
        for number in range(12):
            request = ("x-request-id", f"request-{number}")
            for at in range(2):
                session = ("x-warmpath-session", f"session-{at}")
                by_session.add(
                    (at, await model_of(gateway, completion(model="gpt"), request, session))
                )
            by_request.add(await model_of(gateway, completion(model="gpt"), request))
            by_body.add(await model_of(gateway, completion(model="gpt", prompt=[number] * 9)))
            assert await model_of(gateway, completion(model="own"), request) == "demo"
            assert await model_of(gateway, completion(model="demo"), request) == "demo"
        assert len(by_session) == 2
        assert by_request == by_body == {"demo", "tuned"}
