"""The tiers of a match, as other indexers' units count them, agree with what a rank can reuse."""

import msgspec

from tests.indexer.followed import new_ingest, source
from tests.router.pods.test_hybrid import TOKENS, Fleet, removed, stored
from warmpath.indexer.believed import Believed
from warmpath.indexer.index.memory import MemoryIndex
from warmpath.indexer.keys.key import pack_tokens
from warmpath.router.calls.llmd import weighted_blocks
from warmpath.router.match.match import Matches, Scorer
from warmpath.router.pages.dynamo import Reach, reach_of
from warmpath.router.prompt.token_prompt import TokenPrompt
from warmpath.scorer.strategies import longest_prefix

PROMPT = TokenPrompt("m", pack_tokens(TOKENS), is_whole=True)
EVEN = {"gpu": 1.0, "cpu": 0.5, "disk": 0.25, "remote": 0.125}


def units(matches: Matches, rank: object) -> tuple[float | None, Reach]:
    match = matches[rank]  # type: ignore[index]
    return weighted_blocks(match, 4, EVEN), reach_of(match)


def of_hybrid(fleet: Fleet) -> tuple[float | None, Reach]:
    found = Scorer(fleet.ingest, "").matches(PROMPT, [fleet.rank], longest_prefix)
    return units(found, fleet.rank)


def test_no_unit_counts_blocks_that_a_window_forbids() -> None:
    fleet = Fleet()
    fleet.events(stored(0, "full_attention", TOKENS), stored(1, "sliding_window", TOKENS, window=9))
    assert of_hybrid(fleet) == (6.0, Reach(6, 6, 6))
    fleet.events(removed(1, TOKENS, 24))
    assert of_hybrid(fleet) == (5.0, Reach(5, 5, 5))
    fleet.events(removed(1, TOKENS, 16))
    assert of_hybrid(fleet) == (3.0, Reach(3, 3, 3))


def test_no_unit_counts_blocks_that_one_of_two_groups_lacks() -> None:
    fleet = Fleet()
    fleet.events(stored(0, "full_attention", TOKENS), stored(1, "mla_attention", TOKENS))
    fleet.events(removed(1, TOKENS, 12))
    assert of_hybrid(fleet) == (2.0, Reach(2, 2, 2))


def test_a_model_with_windows_only_holds_what_its_window_allows() -> None:
    fleet = Fleet()
    fleet.events(stored(0, "sliding_window", TOKENS, window=9))
    fleet.events(removed(0, TOKENS, 4, 8))
    assert of_hybrid(fleet) == (6.0, Reach(6, 6, 6))


def test_a_tier_that_all_pods_share_counts_for_each_and_beliefs_for_none() -> None:
    ingest = new_ingest(MemoryIndex)
    ranks = [ingest.add(source(pod, has_replay=False)) for pod in ("a", "b")]
    for rank in ranks:
        rank.connected()
    gpu = stored(0, "full_attention", TOKENS[:8])
    other = stored(0, "full_attention", TOKENS[4:8])
    remote = stored(0, "full_attention", TOKENS[:16]) | {"medium": "EXTERNAL"}
    for rank, events in zip(ranks, ([gpu], [other, remote]), strict=True):
        rank.live("", 0, msgspec.msgpack.encode([0.0, events, 0]))
    believed = Believed(MemoryIndex(), max_blocks=100, assumed_seconds=1.0)
    scorer = Scorer(ingest, "", believed=believed, shared_tiers={"m": frozenset({"remote"})})
    [(_, keys)] = scorer.keys(PROMPT, ranks).items()
    for pod in ("a", "b"):
        believed.arrive(pod, 0, keys, expires=1e9)
    matches = scorer.matches(PROMPT, ranks, longest_prefix)
    assert all(matches[rank].matched_tokens == 24 for rank in ranks)
    assert units(matches, ranks[0]) == (2.25, Reach(2, 2, 4))
    assert units(matches, ranks[1]) == (0.5, Reach(0, 0, 4))
