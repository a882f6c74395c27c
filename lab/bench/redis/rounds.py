"""Rounds that measure layouts of the shared index in turn, on one server and client."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random

from warmpath.indexer.keys.segment import SEGMENT
from warmpath.indexer.shared.redis.connect import RedisSettings, connect
from warmpath.lab.bench.redis.content import Content, HeldPrompt, keys_of, prompts_of
from warmpath.lab.bench.redis.layout import Changes, Layout, PipelineClient, Talk, run_on
from warmpath.lab.bench.stand.look_up import microseconds, no_collector
from warmpath.lab.local.redis_server import RedisServer

Layouts = Mapping[str, Layout]
"""Name in the figures -> layout. All may lie on one server: their keys differ."""
Figures = dict[str, list[float]]
"""Layout's name -> its figures."""


def begin(server: RedisServer, client: PipelineClient, layouts: Layouts) -> Layouts:
    """Empty the server and let each layout write its first records; return the layouts."""
    server.empty()
    for layout in layouts.values():
        client.run(layout.begin())
    return layouts


def fill(client: PipelineClient, layouts: Layouts, content: Content) -> None:
    """Write a content in each layout, and check the look-ups' results."""
    for name, layout in layouts.items():
        for pod, changes in content.changes():
            client.run(layout.add(pod, changes))
        for prompt in content.prompts:
            found = client.run(layout.look_up(prompt.keys))
            assert found == content.truth(prompt.keys), name


def look_up_times(
    client: PipelineClient, layouts: Layouts, prompts: Sequence[HeldPrompt], calls: int
) -> Figures:
    """Return the microseconds of look-ups, sorted; the content must be written already."""

    def way(layout: Layout) -> Callable[[int], object]:
        return lambda call: client.run(layout.look_up(prompts[call % len(prompts)].keys))

    return microseconds({name: way(layout) for name, layout in layouts.items()}, calls)


def edge_times(
    server: RedisServer, layouts: Layouts, prompts: Sequence[HeldPrompt], calls: int
) -> Figures:
    """Return the microseconds of look-ups over the product's own connections, with asyncio."""

    async def measure() -> Figures:
        edge = await connect(RedisSettings(server.url))
        taken: Figures = {name: [] for name in layouts}
        try:
            for call in range(calls):
                keys = prompts[call % len(prompts)].keys
                for name, layout in layouts.items():
                    begun = time.perf_counter()
                    await run_on(edge, layout.look_up(keys))
                    taken[name].append((time.perf_counter() - begun) * 1e6)
        finally:
            await edge.close()
        return {name: sorted(times) for name, times in taken.items()}

    with no_collector():
        return asyncio.run(measure())


def server_times(
    server: RedisServer,
    client: PipelineClient,
    layouts: Layouts,
    prompts: Sequence[HeldPrompt],
    calls: int,
) -> Figures:
    """Return the microseconds of the server's processor time that a look-up takes: a mean for each."""
    found = {}
    for name, layout in layouts.items():
        begun = server.busy()
        for call in range(calls):
            client.run(layout.look_up(prompts[call % len(prompts)].keys))
        found[name] = [(server.busy() - begun) / calls * 1e6]
    return found


def bulk_rates(
    client: PipelineClient, layouts: Layouts, pods: int, *, prompts: int, rounds: int
) -> tuple[Figures, Figures]:
    """Return the rates at which prompts of 625 blocks are added and removed, one pod's prompt at a time.

    A rate is in (block, pod) pairs a second; each round has one.
    """
    added: Figures = {name: [] for name in layouts}
    removed: Figures = {name: [] for name in layouts}
    for number in range(rounds):
        content = prompts_of(625, pods, prompts, seed=1000 + number)
        changes = list(content.changes())
        keys = content.prompts[0].keys
        for name, layout in layouts.items():
            added[name].append(_rate(client, layout.add, changes))
            assert client.run(layout.look_up(keys)) == content.truth(keys), name
            removed[name].append(_rate(client, layout.remove, changes))
            assert client.run(layout.look_up(keys)) == {}, name
    return added, removed


def step_rates(
    client: PipelineClient, layouts: Layouts, pods: int, *, wide: int, steps: int, rounds: int
) -> tuple[Figures, Figures]:
    """Return the rates at which engines' steps are added, and removed in reverse order.

    In a step, `wide` sequences of one engine have filled a further block each.
    """
    added: Figures = {name: [] for name in layouts}
    removed: Figures = {name: [] for name in layouts}
    for number in range(rounds):
        changes = list(_steps(Random(number), pods, wide, steps))
        for name, layout in layouts.items():
            added[name].append(_rate(client, layout.add, changes))
            removed[name].append(_rate(client, layout.remove, changes[::-1]))
    return added, removed


def bytes_a_block(
    server: RedisServer, client: PipelineClient, layouts: Layouts, content: Content
) -> dict[str, float]:
    """Return the server's memory for a distinct block, in bytes, with each layout alone on the server.

    The server is emptied, and no layout may have written before.
    """
    found = {}
    for name, layout in layouts.items():
        begin(server, client, {name: layout})
        before = server.used()
        for pod, changes in content.changes():
            client.run(layout.add(pod, changes))
        found[name] = (server.used() - before) / content.blocks
        keys = content.prompts[0].keys
        assert client.run(layout.look_up(keys)) == content.truth(keys), name
    server.empty()
    return found


def _rate(
    client: PipelineClient,
    way: Callable[[int, Changes], Talk[None]],
    changes: Sequence[tuple[int, Changes]],
) -> float:
    entries = sum(len(keys) for _, change in changes for keys in change.values())
    with no_collector():
        begun = time.perf_counter()
        for pod, change in changes:
            client.run(way(pod, change))
        return entries / (time.perf_counter() - begun)


def _steps(rng: Random, pods: int, wide: int, steps: int) -> Iterator[tuple[int, Changes]]:
    growing = [[keys_of(rng, steps) for _ in range(wide)] for _ in range(pods)]
    for step in range(steps):
        start = step - step % SEGMENT
        for pod, sequences in enumerate(growing):
            yield pod, {keys[start]: [keys[step]] for keys in sequences}
