"""Score over gRPC, both transports: against the peer's indexer with one C client, and forms of Score."""

import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from warmpath.indexer.keys.key import pack_tokens
from warmpath.lab.bench import peer
from warmpath.lab.bench.figure import Figure
from warmpath.lab.bench.speed.index import PACE
from warmpath.lab.bench.stand.look_up import BLOCKS, TOKENS
from warmpath.lab.bench.stand.made_up_fleet import BLOCK_SIZE, MODEL, prompt_of
from warmpath.lab.bench.stand.servers import Fleet, Router, framed, h2load, order, release, until
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc

PODS = 8
PROMPTS = 50
PROCESSES = 2
"""Processes of the router that has as many cores as the peer, whose threads use all of them."""
TRANSPORTS = ("nghttp2", "grpcio")
GRPC = ("-H", "content-type: application/grpc", "-H", "te: trailers")
JSON = ("--h1", "-H", "content-type: application/json")
THEIRS = "Dynamo's standalone indexer, /query"
SCORE = f"Score over gRPC ({{}}), {TOKENS:,}"


def measure(*, quick: bool) -> list[Figure]:
    """Measure calls for a prompt of 10,000 ids that 8 pods hold, over both transports."""
    with holding(*TRANSPORTS) as client:
        figures = [*_unary(client, quick=quick), *_streamed(client, quick=quick)]
    with holding(TRANSPORTS[0], processes=PROCESSES) as client:
        figures.append(_of_processes(client, quick=quick))
    with ExitStack() as stack:
        clients = {name: stack.enter_context(holding(name)) for name in TRANSPORTS}
        return [*figures, *_of_load(_loaded(clients, quick=quick))]


@contextmanager
def holding(
    *transports: str,
    addresses: Sequence[str] = (),
    limits: Sequence[str] = (),
    processes: int = 1,
) -> Iterator["ScoreClient"]:
    """Yield a client of routers, and of the peer, that know all prompts.

    Pods may have addresses, and routers lines of their table `[limits]` and several processes.
    """
    with (
        tempfile.TemporaryDirectory(prefix="warmpath-") as folder,
        Fleet(
            PODS, transports=transports, addresses=addresses, limits=limits, processes=processes
        ) as fleet,
    ):
        order(fleet.flood, seed=1, prompts=PROMPTS, blocks=BLOCKS, events=1, each=BLOCKS, pods=PODS)
        release(fleet.flood)
        assert fleet.flood.hear() == "sent\n"
        prompt = prompt_of(1, BLOCKS)[:TOKENS]
        for router in fleet.routers.values():
            until(partial(_knows, router), "the router knows the prompts")
        if peer.is_installed():
            body = peer.query_body(prompt, MODEL)
            until(lambda: fleet.peer_holds(body, BLOCKS), "the peer knows the prompts")
        yield ScoreClient(fleet, Path(folder), prompt)


def _knows(router: Router) -> bool:
    return router.stored() == PODS * PROMPTS * BLOCKS


class ScoreClient:
    """Asks the routers and the peer for the scores of one prompt."""

    def __init__(self, fleet: Fleet, folder: Path, prompt: list[int]) -> None:
        self.fleet = fleet
        self.prompt = prompt
        """Token ids that all pods hold."""
        self.packed = pb.ScoreRequest(
            prompt=pb.Prompt(model=MODEL, token_ids_packed=pack_tokens(prompt))
        )
        listed = pb.ScoreRequest(prompt=pb.Prompt(model=MODEL, token_ids=pb.TokenIds(ids=prompt)))
        for router in fleet.routers.values():
            scores = router.stub.Score(self.packed, timeout=10).scores
            assert [one.matched_tokens for one in scores] == [
                (TOKENS - 1) // BLOCK_SIZE * BLOCK_SIZE
            ] * PODS
            assert list(router.stub.Score(listed, timeout=10).scores) == list(scores)
        self._bodies = {}
        for name, message in (("packed", self.packed), ("listed", listed)):
            self._bodies[name] = folder / name
            self._bodies[name].write_bytes(framed(message))
        self._query = folder / "query"
        self._query.write_bytes(peer.query_body(prompt, MODEL))

    def router(
        self, transport: str, form: str, calls: int, clients: int
    ) -> tuple[float, float, float]:
        """Ask a router; return requests a second, and p50 and p99 in microseconds."""
        port = self.fleet.routers[transport].port
        url = f"http://127.0.0.1:{port}/warmpath.v1.Router/Score"
        return h2load(url, self._bodies[form], *GRPC, f"-n{calls}", f"-c{clients}", "-m1")

    def peer(self, calls: int, clients: int) -> tuple[float, float, float]:
        """Ask the peer; return requests a second, and p50 and p99 in microseconds."""
        url = f"http://127.0.0.1:{self.fleet.peer_port}/query"
        return h2load(url, self._query, *JSON, f"-n{calls}", f"-c{clients}")


def _unary(client: ScoreClient, *, quick: bool) -> list[Figure]:
    rounds, calls = (2, 200) if quick else (9, 3000)
    slow: dict[str, list[float]] = defaultdict(list)
    tail: dict[str, list[float]] = defaultdict(list)
    fast: dict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        for transport in TRANSPORTS:
            _, p50, p99 = client.router(transport, "packed", calls, 1)
            slow[transport].append(p50)
            tail[transport].append(p99)
            fast[transport].append(client.router(transport, "packed", 2 * calls, 16)[0])
        slow["listed"].append(client.router(TRANSPORTS[0], "listed", calls, 1)[1])
        if peer.is_installed():
            _, p50, p99 = client.peer(calls, 1)
            slow["peer"].append(p50)
            tail["peer"].append(p99)
            fast["peer"].append(client.peer(2 * calls, 16)[0])
    p50s, p99s, rates = (
        {name: statistics.median(taken) for name, taken in of.items()} for of in (slow, tail, fast)
    )
    figures = []
    for transport in TRANSPORTS:
        name = SCORE.format(transport)
        # The slower transport has no goals: it stands here for comparison.
        has_goal = transport == TRANSPORTS[0]
        figures += [
            Figure(
                f"{name} packed ids, one at a time: p50", p50s[transport], "us",
                p50s.get("peer"), THEIRS, goal=0.65 if has_goal else None,
            ),
            Figure(
                f"{name} packed ids, one at a time: p99", p99s[transport], "us",
                p99s.get("peer"), THEIRS,
            ),
            Figure(
                f"{name} packed ids, 16 clients", rates[transport], "req/s",
                rates.get("peer"), THEIRS, goal=1.0 if has_goal else None, least=True,
            ),
        ]  # fmt: skip
    figures.append(
        Figure(
            f"{SCORE.format(TRANSPORTS[0])} ids as repeated uint32: p50",
            p50s["listed"], "us", p50s[TRANSPORTS[0]], "packed ids", goal=1.3,
        )
    )  # fmt: skip
    return figures


def _of_processes(client: ScoreClient, *, quick: bool) -> Figure:
    rounds, calls = (2, 400) if quick else (9, 6000)
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(client.router(TRANSPORTS[0], "packed", calls, 16)[0])
        if peer.is_installed():
            theirs.append(client.peer(calls, 16)[0])
    return Figure(
        f"{SCORE.format(TRANSPORTS[0])} packed ids, 16 clients, server.processes = {PROCESSES}",
        statistics.median(ours), "req/s", statistics.median(theirs) if theirs else None, THEIRS,
        goal=1.0, least=True,
    )  # fmt: skip


def _streamed(client: ScoreClient, *, quick: bool) -> list[Figure]:
    rounds, calls = (2, 50) if quick else (15, 300)
    ways = {}
    for transport in TRANSPORTS:
        stub = client.fleet.routers[transport].stub
        ways[transport, "unary"] = _one_by_one(stub, client.packed)
        ways[transport, "stream"] = _on_a_stream(stub, client.packed)
    taken: dict[tuple[str, str], list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            taken[name].append(statistics.median(way(calls)))
    return [
        Figure(
            f"ScoreStream ({transport}), {TOKENS:,} packed ids, Python client: p50",
            statistics.median(taken[transport, "stream"]), "us",
            statistics.median(taken[transport, "unary"]), "Score with the same client",
            goal=1.0 if transport == TRANSPORTS[0] else None,
        )
        for transport in TRANSPORTS
    ]  # fmt: skip


def _one_by_one(
    stub: router_pb2_grpc.RouterStub, request: pb.ScoreRequest
) -> Callable[[int], list[float]]:
    def ask(calls: int) -> list[float]:
        taken = []
        for _ in range(calls):
            begun = time.perf_counter()
            stub.Score(request, timeout=10)
            taken.append((time.perf_counter() - begun) * 1e6)
        return taken

    return ask


def _on_a_stream(
    stub: router_pb2_grpc.RouterStub, request: pb.ScoreRequest
) -> Callable[[int], list[float]]:
    def ask(calls: int) -> list[float]:
        asked: SimpleQueue[pb.ScoreRequest | None] = SimpleQueue()
        replies = stub.ScoreStream(iter(asked.get, None))
        taken = []
        for _ in range(calls):
            begun = time.perf_counter()
            asked.put(request)
            next(replies)
            taken.append((time.perf_counter() - begun) * 1e6)
        asked.put(None)
        assert not list(replies)
        return taken

    return ask


def _loaded(clients: Mapping[str, ScoreClient], *, quick: bool) -> dict[str, tuple[float, float]]:
    """Return the p99 of calls, in microseconds, while no events come and while many pour in.

    Events come to one router at a time: two that follow as many leave no core for the calls. The
    routers take turns, since the machine's speed changes within minutes.
    """
    rounds, calls, prompts = (1, 200, 200) if quick else (9, 3000, 900)
    shape = {"blocks": BLOCKS, "events": 8, "each": 8, "removes": 1, "prompts": prompts}
    taken: dict[str, list[tuple[float, float]]] = defaultdict(list)
    seed = 1000
    for _ in range(rounds):
        seed += prompts
        for transport, client in clients.items():
            flood = client.fleet.flood
            order(flood, seed=seed, pace=PACE, **shape)
            idle = client.router(transport, "packed", calls, 1)[2]
            release(flood)
            loaded = client.router(transport, "packed", calls, 1)[2]
            assert flood.hear() == "sent\n"
            taken[transport].append((idle, loaded))
    return {
        name: (statistics.median(idle for idle, _ in of), statistics.median(p99 for _, p99 in of))
        for name, of in taken.items()
    }


def _of_load(p99: dict[str, tuple[float, float]]) -> list[Figure]:
    ours, other = TRANSPORTS
    named = f"p99 of Score over gRPC ({{}}) while {PACE:,} blocks a second pour in"
    return [
        Figure(
            named.format(ours), p99[ours][1], "us", p99[other][1], f"with {other}", goal=0.6,
        ),
        *(
            Figure(
                named.format(transport), loaded, "us", idle, "p99 while nothing does",
            )
            for transport, (idle, loaded) in p99.items()
        ),
    ]  # fmt: skip
