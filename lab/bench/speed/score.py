"""Score over gRPC, both transports: against the peer's indexer with one C client, and forms of Score."""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from queue import SimpleQueue
from typing import Any

from warmpath.indexer.keys.key import pack_tokens
from warmpath.lab.bench import peer
from warmpath.lab.bench.figure import Figure
from warmpath.lab.bench.speed.index import PACE
from warmpath.lab.bench.stand.look_up import BLOCKS, TOKENS
from warmpath.lab.bench.stand.made_up_fleet import BLOCK_SIZE, MODEL, prompt_of
from warmpath.lab.bench.stand.servers import (
    JSON,
    Fleet,
    Load,
    h2load,
    medians,
    order,
    release,
    until,
)
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb

PODS = 8
PROMPTS = 50
PROCESSES = 2
"""Processes of the router that has as many cores as the peer, whose threads use all of them."""
TRANSPORTS = ("nghttp2", "grpcio")
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
    *transports: str, addresses: Sequence[str] = (), limits: Sequence[str] = (), processes: int = 1
) -> Iterator["ScoreClient"]:
    """Yield a client of routers, and of the peer, that know all prompts.

    Pods may have addresses, and routers lines of their table `[limits]` and several processes.
    """
    fleet = Fleet(
        PODS, transports=transports, addresses=addresses, limits=limits, processes=processes
    )
    with fleet:
        fleet.hold(seed=1, prompts=PROMPTS, blocks=BLOCKS)
        prompt = prompt_of(1, BLOCKS)[:TOKENS]
        if peer.is_installed():
            body = peer.query_body(prompt, MODEL)
            until(lambda: fleet.peer_holds(body, BLOCKS), "the peer knows the prompts")
        yield ScoreClient(fleet, prompt)


class ScoreClient:
    """Asks the routers and the peer for the scores of one prompt."""

    def __init__(self, fleet: Fleet, prompt: list[int]) -> None:
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
        self._forms = {"packed": self.packed, "listed": listed}
        self._query = peer.query_body(prompt, MODEL)

    def router(self, transport: str, form: str, calls: int, clients: int) -> Load:
        return self.fleet.routers[transport].load("Score", self._forms[form], calls, clients)

    def peer(self, calls: int, clients: int) -> Load:
        url = f"http://127.0.0.1:{self.fleet.peer_port}/query"
        return h2load(url, self._query, *JSON, f"-n{calls}", f"-c{clients}")


def _unary(client: ScoreClient, *, quick: bool) -> list[Figure]:
    rounds, calls = (2, 200) if quick else (9, 3000)
    ways: dict[tuple[str, int], Callable[[], Load]] = {}
    for transport in TRANSPORTS:
        ways[transport, 1] = partial(client.router, transport, "packed", calls, 1)
        ways[transport, 16] = partial(client.router, transport, "packed", 2 * calls, 16)
    ways["listed", 1] = partial(client.router, TRANSPORTS[0], "listed", calls, 1)
    if peer.is_installed():
        ways["peer", 1] = partial(client.peer, calls, 1)
        ways["peer", 16] = partial(client.peer, 2 * calls, 16)
    found = medians(ways, rounds)
    slow, fast = found.get(("peer", 1)), found.get(("peer", 16))
    figures = []
    for transport in TRANSPORTS:
        name = f"{SCORE.format(transport)} packed ids"
        # The slower transport has no goals: it stands here for comparison.
        has_goal = transport == TRANSPORTS[0]
        alone = found[transport, 1]
        figures += [
            Figure(
                f"{name}, one at a time: p50", alone.p50, "us",
                slow and slow.p50, THEIRS, goal=0.65 if has_goal else None,
            ),
            Figure(f"{name}, one at a time: p99", alone.p99, "us", slow and slow.p99, THEIRS),
            Figure(
                f"{name}, 16 clients", found[transport, 16].rate, "req/s",
                fast and fast.rate, THEIRS, goal=1.0 if has_goal else None, least=True,
            ),
        ]  # fmt: skip
    name, packed = (
        f"{SCORE.format(TRANSPORTS[0])} ids as repeated uint32: p50",
        found[TRANSPORTS[0], 1],
    )
    listed = found["listed", 1].p50
    return [*figures, Figure(name, listed, "us", packed.p50, "packed ids", goal=1.3)]


def _of_processes(client: ScoreClient, *, quick: bool) -> Figure:
    rounds, calls = (2, 400) if quick else (9, 6000)
    ways = {"ours": partial(client.router, TRANSPORTS[0], "packed", calls, 16)}
    if peer.is_installed():
        ways["peer"] = partial(client.peer, calls, 16)
    found = medians(ways, rounds)
    theirs = found.get("peer")
    return Figure(
        f"{SCORE.format(TRANSPORTS[0])} packed ids, 16 clients, server.processes = {PROCESSES}",
        found["ours"].rate, "req/s", theirs and theirs.rate, THEIRS, goal=1.0, least=True,
    )  # fmt: skip


def _streamed(client: ScoreClient, *, quick: bool) -> list[Figure]:
    rounds, calls = (2, 50) if quick else (15, 300)
    taken: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(rounds):
        for transport in TRANSPORTS:
            stub = client.fleet.routers[transport].stub
            one = _median(partial(stub.Score, client.packed, timeout=10), calls)
            taken[transport, "unary"].append(one)
            asked: SimpleQueue[pb.ScoreRequest | None] = SimpleQueue()
            replies = stub.ScoreStream(iter(asked.get, None))

            def ask(asked: Any = asked, replies: Any = replies) -> None:
                asked.put(client.packed)
                next(replies)

            taken[transport, "stream"].append(_median(ask, calls))
            asked.put(None)
            assert not list(replies)
    return [
        Figure(
            f"ScoreStream ({transport}), {TOKENS:,} packed ids, Python client: p50",
            statistics.median(taken[transport, "stream"]), "us",
            statistics.median(taken[transport, "unary"]), "Score with the same client",
            goal=1.0 if transport == TRANSPORTS[0] else None,
        )
        for transport in TRANSPORTS
    ]  # fmt: skip


def _median(ask: Callable[[], object], calls: int) -> float:
    """Return the median microseconds of a call."""
    taken = []
    for _ in range(calls):
        begun = time.perf_counter()
        ask()
        taken.append((time.perf_counter() - begun) * 1e6)
    return statistics.median(taken)


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
