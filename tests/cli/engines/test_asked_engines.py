"""What engines are, as they say over HTTP and by their sockets, and the configuration that follows from it.

One file: all tests ask the same kinds of engines.
"""

import asyncio
import json
import socket
import threading
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import zmq

from tests.cli.conftest import Output
from tests.fake_http import Answer, Asked, FakeHttp
from tests.lab.simworker.local_worker import LocalWorker
from tests.servers.api_server import NAMESPACE, ApiServer
from warmpath.cli import check_config
from warmpath.cli.engines import port
from warmpath.cli.engines.ask import Away, Found
from warmpath.cli.engines.fleet import answering, ask_all, is_better
from warmpath.cli.engines.line import Blind, lines
from warmpath.cli.engines.place import Place, PlaceError, configured, places
from warmpath.cli.engines.port import Ports, find, kind_of
from warmpath.cli.engines.written import Asked as Told
from warmpath.cli.engines.written import configuration, write
from warmpath.process.address import HostPort
from warmpath.router.config.read import load
from warmpath.router.config.schema import ServerTable
from warmpath.router.pods.api_access import MOUNT, NO_ACCESS


@pytest.fixture(autouse=True)
def silent_ports_are_given_up_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port, "ASK_SECONDS", 0.5)


def port_of(endpoint: str) -> int:
    return int(endpoint.rpartition(":")[2])


async def asked(*urls: str, key_file: Path | str = "") -> list[Told]:
    return await ask_all(places(urls, None, [], str(key_file)))


@pytest.mark.parametrize(
    ("options", "engine", "title"),
    [
        ((), "vllm", "vLLM 0.32.0"),
        (("--dialect=sglang-0.5.23",), "sglang", "SGLang"),
        (("--engine=trtllm",), "trtllm", "TensorRT-LLM 1.2.0"),
    ],
)
async def test_an_engine_is_asked_and_its_configuration_can_be_served(
    options: tuple[str, ...],
    engine: str,
    title: str,
    tmp_path: Path,
    model_folder: Path,
    output: Output,
) -> None:
    async with LocalWorker(f"--tokenizer={model_folder}", *options) as worker:
        told = await asked(f"http://{worker.address}")
        [found] = told[0].found
    assert (found.title, found.model) == (title, "demo")
    assert found.makes_tokens
    assert found.renders_chats
    assert found.has_metrics
    config = configuration(told, ServerTable())
    [pod] = config.pods
    assert (pod.engine, pod.ranks) == (engine, len(found.ranks))
    if engine == "trtllm":
        assert pod.events == f"http://{worker.address}/kv_cache_events"
    else:
        assert (pod.events, pod.replay) == (worker.events, worker.replay)
    file = tmp_path / "router.toml"
    write(config, file, "gateway")
    assert load(file) == config
    assert await asyncio.to_thread(check_config.main, [str(file)]) == 0
    warnings = output.err().splitlines()
    if engine == "trtllm":
        [warning] = warnings
        assert "models[0].name: none of its pods has /tokenize: picks for texts are" in warning
    else:
        assert not warnings


class Said(FakeHttp):
    """An engine whose every page can be taken away; without any it is a vLLM with all but events."""

    def __init__(self, *missing: str, key: str = "", **pages: Any) -> None:
        super().__init__(self.page)
        self._missing, self._key = missing, key
        config = 'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100"} 1.0\n'
        self._pages = {
            "/health": "",
            "/version": {"version": "0.32.0"},
            "/metrics": config,
            "/v1/models": {"data": [{"id": "m"}, {"id": "alias"}, {"id": "lora", "parent": "m"}]},
            "/tokenize": {"tokens": [1]},
        } | pages

    def page(self, request: Asked) -> Answer:
        is_open = request.headers.get("Authorization") == f"Bearer {self._key}" or not self._key
        if not is_open and request.path.startswith(("/v1", "/tokenize")):
            return Answer(401)
        if request.path in self._missing or request.path not in self._pages:
            return Answer(404)
        if request.path == "/tokenize" and "chat" in self._missing and b"messages" in request.body:
            return Answer(400)
        page = self._pages[request.path]
        return Answer(body=(page if isinstance(page, str) else json.dumps(page)).encode())


BLIND: Blind = {("m", "text"): "no", ("m", "chat"): "no"}


def line_of(engine: FakeHttp, *, key_file: Path | str = "", blind: Blind = BLIND) -> str:
    """Return an engine's line; `blind`: why a router makes no tokens, where its engines do not."""
    told = asyncio.run(asked(engine.url, key_file=key_file))
    [found] = told[0].found or [None]
    lacking = {
        "text": found is not None and not found.makes_tokens,
        "chat": found is not None and not found.renders_chats,
    }
    blind = {name: why for name, why in blind.items() if lacking[name[1]]}
    [line] = lines(told, [], blind, "out/router.toml")
    name, _, said = line.partition("  ")
    assert name == engine.url.removeprefix("http://")
    return said


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        (
            "",
            "vLLM 0.32.0, m: approximate: it sends no events, so the router counts on its own picks",
        ),
        ("", """For exact start it with --kv-events-config '{"enable_kv_cache_events": true,"""),
        (
            "/tokenize",
            "m: approximate: texts are matched by their bytes, as it has no /tokenize. For exact start",
        ),
        ("/tokenize", "start this command with --tokenizer FOLDER, a folder with its tokenizer"),
        ("/metrics", "an unknown server 0.32.0, m: approximate: no events are known of it"),
    ],
)
def test_what_an_engine_lacks_is_said_with_how_to_get_it(missing: str, said: str) -> None:
    with Said(missing) as engine:
        assert said in line_of(engine)


def with_events(engine: FakeHttp, *, replay: bool) -> str:
    """Return the line of an engine of this process, which has sockets for events by now."""
    with zmq.Context() as context, context.socket(zmq.PUB) as events:
        events.bind("tcp://127.0.0.1:*")
        with context.socket(zmq.ROUTER) as other:
            if replay:
                other.bind("tcp://127.0.0.1:*")
            return line_of(engine)


@pytest.mark.parametrize(
    ("missing", "replay", "said"),
    [
        ((), True, "vLLM 0.32.0, m: exact"),
        ((), False, "exact: but it has no replay, which closes gaps: add replay_endpoint"),
        (
            ("chat",),
            True,
            "exact: but for chats, matched by their bytes, as its /tokenize renders none",
        ),
        (("/tokenize",), True, "as it has no /tokenize"),
    ],
)
def test_with_its_events_an_engine_is_exact_but_for_what_it_lacks(
    missing: tuple[str, ...], said: str, *, replay: bool
) -> None:
    with Said(*missing) as engine:
        line = with_events(engine, replay=replay)
    assert said in line
    assert (not missing and replay) or line.rstrip() != said


def test_an_sglang_without_metrics_shows_itself_by_its_owner_and_is_told_to_have_them() -> None:
    info = {"version": "0.5.23", "page_size": 64, "dp_size": 1, "kv_events_config": None}
    models = {"data": [{"id": "m", "owned_by": "sglang"}]}
    with Said("/metrics", **{"/server_info": info, "/v1/models": models}) as engine:
        line = line_of(engine)
        assert "SGLang 0.5.23, m: approximate: it sends no events" in line
        assert 'For exact start it with --kv-events-config \'{"publisher": "zmq"' in line
        assert "exact: but it serves no /metrics" in with_events(engine, replay=True)
        assert "start it with --enable-metrics" in with_events(engine, replay=True)


def test_a_prefix_cache_that_is_off_comes_before_all_else() -> None:
    off = 'vllm:cache_config_info{enable_prefix_caching="False",block_size="16"} 1.0\n'
    with Said("/tokenize", **{"/metrics": off}) as engine:
        assert "blind: its prefix cache is off. Start it with --enable-prefix-caching" in line_of(
            engine
        )


def test_an_engine_that_wants_a_key_is_named_and_works_with_it(tmp_path: Path) -> None:
    with Said(key="secret") as engine:
        assert "it wants an API key: give a file with it, --api-key-file FILE" in line_of(engine)
        file = tmp_path / "key.txt"
        file.write_text("other")
        wrong = line_of(engine, key_file=file)
        assert f"/v1/models answers 401; the key in {file} is not its own" in wrong
        file.write_text("secret")
        told = asyncio.run(asked(engine.url, key_file=file))
        config = configuration(told, ServerTable())
        file.unlink()
        assert "there is no such file" in line_of(engine, key_file=file)
    assert config.pods[0].key_file == str(file)
    assert config.models[0].aliases == ["alias"]


@pytest.mark.parametrize(
    ("pages", "problem"),
    [
        ({"/v1/models": {"data": []}}, "it is no engine: /v1/models lists no model"),
        ({"/v1/models": [1]}, "it is no engine: /v1/models lists no model"),
    ],
)
def test_what_is_no_engine_is_left_out(pages: dict[str, Any], problem: str) -> None:
    with Said(**pages) as engine:
        assert f"away: {problem}; it is taken in when it answers" in line_of(engine)


async def test_engines_are_waited_for_until_one_answers(held_port: int) -> None:
    said: list[str] = []
    at = f"http://127.0.0.1:{held_port}"
    with Said() as engine:
        waiting = asyncio.create_task(answering(places([at], None, []), said.append))
        while not said:
            await asyncio.sleep(0.01)
        assert f"waiting for an engine that answers: 127.0.0.1:{held_port}" in said[0]
        waiting.cancel()
        told = await answering(places([at, engine.url], None, []), said.append)
    assert [len(one.found) for one in told] == [0, 1]
    assert len(said) == 1


def test_a_port_that_does_not_greet_gets_nothing() -> None:
    got = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                got.append(connection.recv(100))

        thread = threading.Thread(target=serve)
        thread.start()
        assert asyncio.run(kind_of(HostPort("127.0.0.1", server.getsockname()[1]))) == ""
        thread.join()
    assert got == [b""]


def next_to_each_other(context: zmq.Context[Any], kind: int) -> list[zmq.Socket[bytes]]:
    """Return two sockets that listen at a port and the next one."""
    while True:
        first, second = context.socket(kind), context.socket(kind)
        port = first.bind_to_random_port("tcp://127.0.0.1")
        try:
            second.bind(f"tcp://127.0.0.1:{port + 1}")
        except zmq.ZMQError:
            first.close()
            second.close()
            continue
        return [first, second]


def test_ranks_have_a_port_each_and_the_configuration_names_those_of_rank_zero() -> None:
    with zmq.Context() as context, Said() as engine:
        at = HostPort("127.0.0.1", port_of(engine.url))
        events, replay = (next_to_each_other(context, kind) for kind in (zmq.PUB, zmq.ROUTER))
        ports = [port_of(one[0].last_endpoint.decode()) for one in (events, replay)]
        found = asyncio.run(find(at, [4, 5], None, is_alone=True))
        assert [found.events, found.replay] == [port - 4 for port in ports]
        events[1].close()
        while (found := asyncio.run(find(at, [4, 5], None, is_alone=True))).events:
            pass
        assert found.several == (ports[0],), "a rank's port is missing"
        for one in (*events, *replay):
            one.close()


async def test_ports_of_several_engines_in_one_process_are_not_guessed() -> None:
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(LocalWorker()) for _ in range(2)]
        at = HostPort("127.0.0.1", port_of(workers[0].address))
        ports = await find(at, [0], None, is_alone=False)
        assert ports.events == 0
        assert set(ports.several) == {port_of(one.events) for one in workers}
        endpoint = workers[1].events.replace("127.0.0.1", "*")
        assert (await find(at, [0], {"endpoint": endpoint}, is_alone=False)).events == port_of(
            workers[1].events
        )


FAR = HostPort("10.0.0.1", 8000)


CONFIGURED = """
[[models]]
name = "m"

[[pods]]
id = "first"
model = "m"
address = "{address}"
{more}
"""


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("", "first  vLLM 0.32.0, m: approximate: it sends no events"),
        (
            "",
            '"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"}\', and set `events` and',
        ),
        ('events = "tcp://127.0.0.1:9"', "first  vLLM 0.32.0, m: approximate: it sends no events"),
        (
            'events = "tcp://127.0.0.1:9"',
            '"endpoint": "tcp://*:9", "replay_endpoint": "tcp://*:5558"}\'',
        ),
        ('watch = "127.0.0.1:9"', "first  vLLM 0.32.0, m: exact"),
    ],
)
def test_the_second_day_says_what_is_missing_too(more: str, said: str, tmp_path: Path) -> None:
    with Said() as engine:
        file = tmp_path / "router.toml"
        file.write_text(CONFIGURED.format(address=engine.url.removeprefix("http://"), more=more))
        told = asyncio.run(ask_all(configured(load(file), tmp_path)))
    [line] = lines(told, [], {}, str(file))
    assert said in line
    assert ("set `events`" in line) == (more == "")


@pytest.mark.parametrize("more", ["", 'events = "tcp://127.0.0.1:9"'])
def test_events_that_a_configuration_lacks_are_said_with_their_endpoints(
    more: str, tmp_path: Path
) -> None:
    with Said() as engine, zmq.Context() as context, context.socket(zmq.PUB) as events:
        port = events.bind_to_random_port("tcp://127.0.0.1")
        file = tmp_path / "router.toml"
        file.write_text(CONFIGURED.format(address=engine.url.removeprefix("http://"), more=more))
        told = asyncio.run(ask_all(configured(load(file), tmp_path)))
    [line] = lines(told, [], {}, str(file))
    assert "approximate: it sends events, which the router does not follow" in line
    assert f'set events = "tcp://127.0.0.1:{port}"' in line


def far(found: Found, **changes: Any) -> str:
    told = [Told(Place("10.0.0.1:8000", address=FAR), (found._replace(at=FAR, **changes),))]
    [line] = lines([*told], [], {}, "f.toml")
    return line


def test_a_distant_engine_whose_events_do_not_come_is_said_with_its_port() -> None:
    with Said() as engine:
        [told] = asyncio.run(asked(engine.url))
    [found] = told.found
    line = far(found, ports=Ports(tried=(5557, 5558)))
    assert "approximate: no events come from port 10.0.0.1:5557" in line
    assert "Open it to this machine, or start it with --kv-events-config" in line
    assert "its host has several engines" in far(found, ports=Ports())
    second = Told(Place("10.0.0.1:8001", address=FAR), (found._replace(at=FAR),))
    assert (
        '"tcp://*:5567", "replay_endpoint": "tcp://*:5568"'
        in list(
            lines(
                [
                    second._replace(place=Place("10.0.0.1:8000", address=FAR)),
                    second._replace(answers=(found._replace(at=FAR, ports=Ports(tried=(5557,))),)),
                ],
                [],
                {},
                "",
            )
        )[1]
    )
    assert is_better(found._replace(ports=Ports(5557)), found)
    assert is_better(found._replace(ports=Ports(5567)), found._replace(ports=Ports(5557)))
    assert not is_better(found, found._replace(ports=Ports(5557)))


def test_one_name_with_several_addresses_is_a_set_and_its_odd_engines_are_named() -> None:
    [place] = places(["http://vllm:8000"], None, [])
    with Said() as engine:
        [told] = asyncio.run(asked(engine.url))
    [found] = told.found
    other = found._replace(at=HostPort("10.0.0.2", 8000), model="other")
    both = Told(place, (found._replace(at=FAR, ports=Ports(5557, 5558)), other))
    config = configuration([both], ServerTable())
    [pods] = config.pod_sets
    assert (pods.dns, pods.port, pods.model) == ("vllm", 8000, "m")
    assert (pods.events_port, pods.replay_port) == (5557, 5558)
    assert not config.pods
    [line] = lines([both], [], {}, "")
    assert line.startswith(
        "vllm:8000 (2 found)  vLLM 0.32.0, m: approximate: 10.0.0.2:8000 differs"
    )


def test_pods_of_kubernetes_are_a_set_and_without_a_cluster_it_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    [place] = places([], None, ["llm/app=vllm,tier=gpu:8001"])
    assert place.pods is not None
    assert (place.pods.namespace, place.pods.selector) == ("llm", "app=vllm,tier=gpu")
    assert (place.pods.port, place.pods.name) == (8001, "app-vllm-tier-gpu")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    [told] = asyncio.run(ask_all([place]))
    [away] = told.answers
    assert isinstance(away, Away)
    assert away.problem == f"{NO_ACCESS}; {MOUNT}"
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(PlaceError, match=r"--pods: needs the extra: pip install 'warmpath-router"):
        places([], None, ["app=vllm"])


async def test_pods_of_kubernetes_are_asked_once_the_api_server_lists_them_as_ready(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model_folder: Path
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    async with ApiServer([]) as server, LocalWorker(f"--tokenizer={model_folder}") as worker:
        context = {"cluster": "c", "user": "u"}
        access = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": context}],
            "clusters": [{"name": "c", "cluster": {"server": server.address}}],
            "users": [{"name": "u", "user": {}}],
        }
        kubeconfig.write_text(json.dumps(access))
        [place] = places([], None, [f"{NAMESPACE}/app=vllm:{port_of(worker.address)}"])

        async def problem() -> str:
            [of_place] = await ask_all([place])
            [answer] = of_place.answers
            return answer.problem if isinstance(answer, Away) else ""

        assert "add the verb 'list' for 'pods' to the Role" in await problem()
        server.rules = None
        await server.put("a", "1", ip="127.0.0.1", ready=False, app="vllm")
        assert await problem() == "none of its pods is ready"
        await server.put("a", "1", ip="127.0.0.1", app="vllm")
        assert not await problem()
    assert f"the API server at {server.address}: nothing listens there" in await problem()


@pytest.mark.parametrize(
    ("engines", "pods", "problem"),
    [
        (["ftp://a:1"], [], "--engine: 'ftp://a:1' is not http://HOST:PORT"),
        (["http://a:1/v1"], [], "--engine: 'http://a:1/v1' is not http://HOST:PORT"),
        (["http://a:99999"], [], "--engine: 'http://a:99999': Port out of range"),
        (["http://a b"], [], "--engine: 'a b' is not a host's name"),
        ([], ["a=b:0"], "--pods: 'a=b:0' is not [NAMESPACE/]LABEL=VALUE[:PORT]"),
        ([], ["ns/a=b=c:80"], "--pods: 'ns/a=b=c:80': 'a=b=c' is none of key=value"),
    ],
)
def test_a_wrong_place_is_named(engines: list[str], pods: list[str], problem: str) -> None:
    with pytest.raises(PlaceError) as error:
        places(engines, None, pods)
    assert problem in str(error.value)


def test_a_file_of_engines_has_one_on_a_line(tmp_path: Path) -> None:
    file = tmp_path / "engines"
    file.write_text("http://10.0.0.1:8000  # the first\n\nhttps://[fd00::1]:443\n10.0.0.1\n")
    found = places([], file, [])
    assert [(one.name, one.https) for one in found] == [
        ("10.0.0.1:8000", False),
        ("[fd00::1]:443", True),
    ]
    with pytest.raises(PlaceError, match="there is no such file"):
        places([], tmp_path / "none", [])


def test_a_changed_file_is_kept_beside_the_new_one(tmp_path: Path) -> None:
    with Said() as engine:
        told = asyncio.run(asked(engine.url))
    file = tmp_path / "router.toml"
    file.write_text("mine", encoding="utf-8")
    write(configuration(told, ServerTable()), file, "serve")
    assert (tmp_path / "router.toml.old").read_text(encoding="utf-8") == "mine"
    write(configuration(told, ServerTable()), file, "serve")
    assert (tmp_path / "router.toml.old").read_text(encoding="utf-8") == "mine"
