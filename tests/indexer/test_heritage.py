"""The process that follows the engines is killed, and another one goes on from what it left in memory."""

import os
import time
from collections.abc import Iterator
from functools import partial
from random import Random

import pytest

from tests.indexer.killed import writing
from warmpath.indexer.compiled.memory import File, Memory, new_file
from warmpath.indexer.embedded import embedded_index
from warmpath.indexer.engines import vllm
from warmpath.indexer.follow.instance import RankSource
from warmpath.indexer.follow.stream_source import RankIngest
from warmpath.indexer.index.slot import RankName
from warmpath.indexer.keys.key import Chain, Keyspace, pack_tokens
from warmpath.indexer.mirror import Mirror
from warmpath.indexer.processes.heritage import KILLED, Heir, inherited
from warmpath.indexer.processes.publish import Publisher
from warmpath.indexer.ranks import SWEEP_BUDGET, Ingest
from warmpath.indexer.stream.replay import AskReplay
from warmpath.indexer.trust import Level
from warmpath.lab.bench.stand.made_up_fleet import BLOCK_SIZE, batches_of, prompt_of

BYTES = 16 << 20
RANKS, PROMPTS, BLOCKS = 8, 60, 60
HISTORY = [
    [
        payload
        for prompt in range(PROMPTS)
        for payload in batches_of(
            prompt % 40,
            BLOCKS,
            events=2,
            each=7,
            # Half of the engines give blocks the same names, the others have their own.
            owner=rank if rank % 2 else 0,
            removes=prompt < 20 or prompt % 5 == rank % 5,
        )
    ]
    for rank in range(RANKS)
]
"""All batches of each rank's engine."""
ROOT = Keyspace("m", BLOCK_SIZE).root()
CHAINS = [
    Chain(ROOT, pack_tokens(prompt_of(seed, BLOCKS)), BLOCK_SIZE, BLOCKS) for seed in range(40)
]


class Engines:
    """The engines' ranks as a process follows them; it asks for replays, and gets them."""

    def __init__(self, ingest: Ingest) -> None:
        self.ingest = ingest
        self.ranks: list[RankIngest] = []
        for number in range(RANKS):
            source = RankSource(
                f"pod-{number}", 0, "m", vllm.decode, has_replay=True, dialect="vllm"
            )
            rank = ingest.add(source)
            rank.ask = partial(self._asked, number)
            self.ranks.append(rank)
        self._asks: list[tuple[int, AskReplay]] = []

    def _asked(self, number: int, ask: AskReplay) -> None:
        self._asks.append((number, ask))

    def replay(self, *, whole: bool) -> None:
        """Answer the replays that were asked for: with all batches, or with those before the present."""
        while self._asks:
            number, ask = self._asks.pop()
            rank = self.ranks[number]
            if whole:
                for sequence in range(ask.start, len(HISTORY[number])):
                    rank.replayed(ask.ticket, sequence, HISTORY[number][sequence])
            rank.replay_ended(ask.ticket)


def _ingest(file: File | None, half: int = 0) -> Ingest:
    memory = publisher = None
    if file is not None:
        memory = Memory(file, half)
        memory.clear()
        publisher = Publisher(memory, time.monotonic)
    return Ingest(
        embedded_index(BYTES, memory),
        hash_seed="",
        pending_bytes=1 << 24,
        stale_after=60.0,
        clock=time.monotonic,
        publisher=publisher,
    )


def _follow(file: File, seed: int) -> None:
    rng = Random(seed)
    engines = Engines(_ingest(file))
    publisher = engines.ingest.publisher
    assert publisher is not None
    publisher.begin(None, ())
    for rank in engines.ranks:
        rank.connected()
    engines.replay(whole=False)
    done = [0] * RANKS
    while True:
        number = rng.randrange(RANKS)
        frames = [
            ("", sequence, HISTORY[number][sequence])
            for sequence in range(done[number], min(done[number] + 4, len(HISTORY[number])))
        ]
        engines.ranks[number].live_many(frames)
        done[number] += len(frames)
        if rng.random() < 0.1:
            engines.ingest.tick(SWEEP_BUDGET)
            engines.ingest.beat()


@pytest.fixture(scope="module")
def expected() -> Engines:
    engines = Engines(_ingest(None))
    for rank in engines.ranks:
        rank.connected()
    engines.replay(whole=True)
    return engines


@pytest.fixture
def file() -> Iterator[File]:
    descriptor = new_file()
    yield File(descriptor)
    os.close(descriptor)


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(n, marks=pytest.mark.deep) for n in range(4, 60))]
)
def test_a_killed_followers_heir_goes_on_exactly_but_for_the_rank_at_work(
    file: File, seed: int, expected: Engines
) -> None:
    mirror = Mirror(file, hash_seed="", clock=time.monotonic)
    mirrored = [mirror.mirror(f"pod-{number}", 0) for number in range(RANKS)]
    assert {rank.trust.level for rank in mirrored} == {Level.COLD}
    with writing(partial(_follow, file, seed)):
        while not any(_matches(mirror).values()):
            time.sleep(0.001)
        until = time.monotonic() + Random(seed).uniform(0.0, 0.25)
        while time.monotonic() < until:
            _matches(mirror)
    before = _matches(mirror)
    half = file.current
    old = Memory(file, half)
    heirs: dict[RankName, Heir] = {
        RankName(one.saved.pod, one.saved.rank): one for one in inherited(old)
    }
    engines = Engines(_ingest(file, 1 - half))
    publisher = engines.ingest.publisher
    assert publisher is not None
    publisher.begin(old, heirs)
    for rank in engines.ranks:
        if heir := heirs.get(RankName(rank.pod, rank.number)):
            rank.restore(heir.saved)
            if heir.is_doubted:
                rank.missed(KILLED)
    engines.ingest.tick(SWEEP_BUDGET)
    assert file.current == half
    assert _matches(mirror) == before
    for rank in engines.ranks:
        rank.connected()
    engines.replay(whole=True)
    doubted = 0
    for rank, other in zip(engines.ranks, expected.ranks, strict=True):
        name = RankName(rank.pod, rank.number)
        if name in heirs and heirs[name].is_doubted:
            doubted += 1
            assert rank.trust.level is Level.DEGRADED
        else:
            assert rank.trust.level is Level.EXACT, rank.trust
            assert rank.state.held() == other.state.held()
    assert doubted <= 1
    engines.ingest.tick(SWEEP_BUDGET)
    assert file.current == 1 - half
    assert _matches(mirror) == _matches(engines.ingest)
    assert [one.trust.level for one in mirrored] == [one.trust.level for one in engines.ranks]
    assert [one.blocks() for one in mirrored] == [one.blocks() for one in engines.ranks]


def _matches(ingest: Ingest) -> dict[tuple[int, str, int, bool], tuple[int, int]]:
    """Return who holds what of all prompts, by prompt, pod, group and doubt."""
    ingest.expire()
    return {
        (number, place.pod, place.group, place.doubted): (start, stop)
        for number, chain in enumerate(CHAINS)
        for place, start, stop in ingest.match(chain)
    }
