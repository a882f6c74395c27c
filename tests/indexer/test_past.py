"""What ranks held a while ago."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.indexer.engine_model import BLOCK, EngineModel
from tests.indexer.followed import new_ingest, source
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.index.slot import Place, RankName
from warmpath.indexer.keys.key import Chain, Keyspace, chain, pack_tokens, pack_words
from warmpath.indexer.past import Past
from warmpath.indexer.rank import Rank
from warmpath.indexer.trust import Level, Trust

PLACES = [Place("a", 0, Tier.GPU, 0), Place("a", 0, Tier.CPU, 0), Place("b", 1, Tier.GPU, 0)]
CHAIN = [7, 3, 9, 5, 1]
Step = tuple[Place, frozenset[int]]
"""A place, and the keys that it holds from then on."""
STEP: st.SearchStrategy[Step] = st.tuples(
    st.sampled_from(PLACES), st.frozensets(st.integers(1, 9), max_size=9)
)


def stretches(held: set[tuple[Place, int]]) -> set[tuple[Place, int, int]]:
    """Return the runs of a chain's blocks that each place holds."""
    found = set()
    for place in PLACES:
        start = None
        for at, key in enumerate([*CHAIN, 0]):
            if (place, key) in held and start is None:
                start = at
            elif (place, key) not in held and start is not None:
                found.add((place, start, at))
                start = None
    return found


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(STEP, max_size=12), st.integers(0, 12))
def test_any_moment_is_as_it_was(steps: list[Step], at: int) -> None:
    now = 0.0
    past = Past(lambda: now)
    held: set[tuple[Place, int]] = set()
    then = [set(held)]
    for place, keys in steps:
        now += 1.0
        before = {key for one, key in held if one == place}
        past.changed(place, sorted(keys - before), is_added=True)
        past.changed(place, sorted(before - keys), is_added=False)
        held = {one for one in held if one[0] != place} | {(place, key) for key in keys}
        then.append(set(held))
    at = min(at, len(steps))
    found = past.rewound(stretches(held), pack_words(CHAIN), at + 0.5)
    assert set(found) == stretches(then[at])
    assert len(found) == len(set(found))


def test_a_ranks_past_is_known_from_its_first_exact_moment_on() -> None:
    now = 10.0
    past = Past(lambda: now, most_keys=4)
    past.begin(RankName("a", 0))
    rank = Rank("a", 0, "new", lambda: now)
    assert not past.knows(rank, 11.0), "it is cold"
    rank.believe(Trust(Level.EXACT, "followed from the first batch", 12.0))
    assert not past.knows(rank, 11.0)
    assert past.knows(rank, 12.0)
    assert not past.knows(Rank("b", 0, "", lambda: now), 12.0), "in Redis, which tells no changes"
    for at in (20.0, 21.0):
        now = at
        past.changed(PLACES[0], [1, 2, 3], is_added=True)
    assert not past.knows(rank, 20.0), "the change at 20 was forgotten"
    assert past.knows(rank, 20.5)
    past.begin(RankName("a", 0))
    assert not past.knows(rank, 20.5), "its cache was emptied at 21"


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=8))
def test_an_ingest_knows_what_a_true_engine_held_before_each_request(
    prompts: list[tuple[int, int]],
) -> None:
    now = 1.0
    past = Past(lambda: now)
    ingest = new_ingest(clock=lambda: now, past=past)
    engine = EngineModel()
    rank = ingest.add(source(has_replay=False, capacity=engine.capacity))
    rank.connected()
    asked = []
    for kind, blocks in prompts:
        tokens = tuple([kind] * BLOCK * blocks)
        asked.append((now, tokens, engine.truth()[Tier.GPU]))
        now += 1.0
        rank.live("", *engine.store(tokens))
    for at, tokens, held in asked:
        keys = chain(Keyspace("m", BLOCK).root(), pack_tokens(tokens), BLOCK)
        packed = Chain(0, b"", 1, len(keys), (), pack_words(keys))
        found = past.rewound(ingest.match(packed), packed.made, at)
        there = {keys[at] for _, start, stop in found for at in range(start, stop)}
        assert there == held & set(keys)
        assert past.knows(rank, at) == (at > asked[0][0])
