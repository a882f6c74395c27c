"""Score over gRPC: the router against the peer's indexer with one C client, and forms of Score."""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

from bench import peer
from bench.figure import Figure
from bench.speed.index import PACE
from bench.stand.look_up import BLOCKS, TOKENS
from bench.stand.made_up_fleet import BLOCK_SIZE, MODEL, prompt_of
from bench.stand.servers import Fleet, framed, h2load, order, release, until
from indexer.keys.token import pack_tokens
from router.pb.warmpath.v1 import router_pb2 as pb
from router.pb.warmpath.v1 import router_pb2_grpc

PODS = 8
PROMPTS = 50
GRPC = ("-H", "content-type: application/grpc", "-H", "te: trailers")
JSON = ("--h1", "-H", "content-type: application/json")


def measure(*, quick: bool) -> list[Figure]:
    """Measure calls for a prompt of 10,000 ids that 8 pods hold."""
    with (
        tempfile.TemporaryDirectory(prefix="warmpath-") as folder,
        Fleet(PODS) as fleet,
    ):
        order(fleet.flood, seed=1, prompts=PROMPTS, blocks=BLOCKS, events=1, each=BLOCKS, pods=PODS)
        release(fleet.flood)
        assert fleet.flood.hear() == "sent\n"
        prompt = prompt_of(1, BLOCKS)[:TOKENS]
        until(lambda: fleet.stored() == PODS * PROMPTS * BLOCKS, "the router knows the prompts")
        if peer.is_installed():
            body = peer.query_body(prompt, MODEL)
            until(lambda: fleet.peer_holds(body, BLOCKS), "the peer knows the prompts")
        client = Client(fleet, Path(folder), prompt)
        return [
            *_unary(client, quick=quick),
            _streamed(client, quick=quick),
            _loaded(client, quick=quick),
        ]


class Client:
    """Asks the router and the peer for the scores of one prompt."""

    def __init__(self, fleet: Fleet, folder: Path, prompt: list[int]) -> None:
        self.fleet = fleet
        self.packed = pb.ScoreRequest(
            prompt=pb.Prompt(model=MODEL, token_ids_packed=pack_tokens(prompt))
        )
        listed = pb.ScoreRequest(prompt=pb.Prompt(model=MODEL, token_ids=pb.TokenIds(ids=prompt)))
        scores = fleet.stub.Score(self.packed, timeout=10).scores
        assert [one.matched_tokens for one in scores] == [
            (TOKENS - 1) // BLOCK_SIZE * BLOCK_SIZE
        ] * PODS
        assert list(fleet.stub.Score(listed, timeout=10).scores) == list(scores)
        self._bodies = {}
        for name, message in (("packed", self.packed), ("listed", listed)):
            self._bodies[name] = folder / name
            self._bodies[name].write_bytes(framed(message))
        self._query = folder / "query"
        self._query.write_bytes(peer.query_body(prompt, MODEL))

    def router(self, form: str, calls: int, clients: int) -> tuple[float, float, float]:
        """Ask the router; return requests a second, and p50 and p99 in microseconds."""
        url = f"http://127.0.0.1:{self.fleet.port}/warmpath.v1.Router/Score"
        return h2load(url, self._bodies[form], *GRPC, f"-n{calls}", f"-c{clients}", "-m1")

    def peer(self, calls: int, clients: int) -> tuple[float, float, float]:
        """Ask the peer; return requests a second, and p50 and p99 in microseconds."""
        url = f"http://127.0.0.1:{self.fleet.peer_port}/query"
        return h2load(url, self._query, *JSON, f"-n{calls}", f"-c{clients}")


def _unary(client: Client, *, quick: bool) -> list[Figure]:
    rounds, calls = (2, 200) if quick else (9, 3000)
    slow: dict[str, list[float]] = {"packed": [], "listed": [], "peer": []}
    fast: dict[str, list[float]] = {"packed": [], "peer": []}
    for _ in range(rounds):
        for form in ("packed", "listed"):
            slow[form].append(client.router(form, calls, 1)[1])
        fast["packed"].append(client.router("packed", 2 * calls, 16)[0])
        if peer.is_installed():
            slow["peer"].append(client.peer(calls, 1)[1])
            fast["peer"].append(client.peer(2 * calls, 16)[0])
    p50 = {name: statistics.median(taken) for name, taken in slow.items() if taken}
    rate = {name: statistics.median(taken) for name, taken in fast.items() if taken}
    theirs = "Dynamo's standalone indexer, /query"
    return [
        Figure(
            f"Score over gRPC, {TOKENS:,} packed ids, one at a time: p50",
            p50["packed"], "us", p50.get("peer"), theirs, goal=0.65,
        ),
        Figure(
            f"Score over gRPC, {TOKENS:,} packed ids, 16 clients",
            rate["packed"], "req/s", rate.get("peer"), theirs, goal=1.2, least=True,
        ),
        Figure(
            f"Score over gRPC, {TOKENS:,} ids as repeated uint32: p50",
            p50["listed"], "us", p50["packed"], "packed ids", goal=1.3,
        ),
    ]  # fmt: skip


def _streamed(client: Client, *, quick: bool) -> Figure:
    rounds, calls = (2, 50) if quick else (15, 300)
    ways = {
        "unary": _one_by_one(client.fleet.stub, client.packed),
        "stream": _on_a_stream(client.fleet.stub, client.packed),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            taken[name].append(statistics.median(way(calls)))
    return Figure(
        f"ScoreStream, {TOKENS:,} packed ids, Python client: p50",
        statistics.median(taken["stream"]), "us", statistics.median(taken["unary"]),
        "Score with the same client", goal=0.55,
    )  # fmt: skip


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


def _loaded(client: Client, *, quick: bool) -> Figure:
    """Measure the p99 of calls while events pour in."""
    rounds, calls, prompts = (1, 200, 200) if quick else (7, 3000, 900)
    idle, loaded = [], []
    seed = 1000
    for _ in range(rounds):
        seed += prompts
        shape = {"blocks": BLOCKS, "events": 8, "each": 8, "removes": 1, "prompts": prompts}
        order(client.fleet.flood, seed=seed, pace=PACE, **shape)
        idle.append(client.router("packed", calls, 1)[2])
        release(client.fleet.flood)
        loaded.append(client.router("packed", calls, 1)[2])
        assert client.fleet.flood.hear() == "sent\n"
    return Figure(
        f"p99 of Score over gRPC while {PACE:,} blocks a second pour in",
        statistics.median(loaded), "us", statistics.median(idle), "p99 while nothing does",
        goal=1.5,
    )  # fmt: skip
