"""What counts of ranks' caches: in their forms, tiers, lives and windows, it is what engines then report."""

from pathlib import Path
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conformance.reference_index import ReferenceIndex
from tests.indexer.followed import new_ingest, source
from tests.indexer.memory_index import MemoryIndex
from tests.router.match.test_hybrid import TOKENS, Fleet, removed, stored
from tests.router.pick.picker_parts import BLOCK, Parts, first
from tests.router.pick.weighed import FakeRank
from tests.router.service_stand import Stand, packed, standing
from warmpath.indexer.believed import Believed
from warmpath.indexer.engines.cache_groups import Group, Layout
from warmpath.indexer.keys.key import pack_tokens, pack_words
from warmpath.indexer.ranks import Ingest
from warmpath.indexer.trust import Level
from warmpath.proto.pb.warmpath.v1 import router_pb2
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2 as pb
from warmpath.router.calls.llmd import weighted_blocks
from warmpath.router.match.forms import KeptForms
from warmpath.router.match.match import Matches, Scorer
from warmpath.router.pages.dynamo import Reach, reach_of
from warmpath.router.prompt.token_prompt import TokenPrompt
from warmpath.scorer.strategies import longest_prefix

INGEST = Ingest(ReferenceIndex(), hash_seed="", pending_bytes=1, stale_after=1.0, clock=lambda: 0.0)
LAYOUTS = st.sampled_from(
    [
        Layout(),
        Layout({0: Group("full_attention", 16)}),
        Layout({0: Group("full_attention", 16)}, lookahead=True),
        Layout({0: Group("full_attention", 64)}),
        Layout({0: Group("sliding_window", 16, 128)}),
    ]
)


def test_a_rank_whose_first_event_tells_of_its_blocks_has_their_form_from_then_on() -> None:
    kept, rank = KeptForms(INGEST, None), FakeRank("p", block_size=0)
    ranks = [rank, FakeRank("q")]
    assert list(kept.of(ranks).unknown) == [rank]  # type: ignore[arg-type]
    rank.layout = Layout({0: Group("", 64)})
    forms = kept.of(ranks)  # type: ignore[arg-type]
    assert not forms.unknown
    assert {form: list(alike) for form, alike in forms.known.items()} == {
        (64, False): [rank],
        (16, False): [ranks[1]],
    }


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 3), unique=True), st.integers(0, 3), LAYOUTS), max_size=8
    )
)
def test_whatever_changed_forms_are_those_made_anew(
    steps: list[tuple[list[int], int, Layout]],
) -> None:
    kept, fleet = KeptForms(INGEST, None), [FakeRank("p", number) for number in range(4)]
    for chosen, changed, layout in steps:
        fleet[changed].layout = layout
        ranks = [fleet[number] for number in chosen]
        assert kept.of(ranks) == KeptForms(INGEST, None).of(ranks)  # type: ignore[arg-type]


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


def test_what_arrives_at_a_cache_that_begins_anew_between_two_picks_of_the_same_pods_is_gone() -> (
    None
):
    parts = Parts(pods=2)
    _, choice = parts.choose()
    picked = first(choice)
    assert parts.arriving()[picked]
    rank = parts.rank(int(picked[-1]))
    rank.begin_snapshot()
    parts.tell(rank, "exact")
    assert not any(parts.arriving().values())


def test_what_arrives_at_a_rank_that_is_known_anew_by_the_same_name_is_gone() -> None:
    parts = Parts(pods=1)
    parts.rank(0).begin_snapshot()
    parts.tell(parts.rank(0), "exact")
    parts.choose()
    assert any(parts.arriving().values())
    parts.ingest.remove("pod-0", 0)
    parts.pods[0] = parts.pod("pod-0")
    assert not any(parts.arriving().values())


def test_of_a_snapshot_under_way_what_has_arrived_counts_although_the_rank_is_cold() -> None:
    parts = Parts(pods=1)
    parts.warm(0, 4)
    rank = parts.rank(0)
    rank.begin_snapshot()
    assert parts.match().known_tokens == 0
    rank.take_part(pb.SnapshotPart(tier="gpu", keys=pack_words([1, 2])))
    assert rank.trust.level is Level.COLD
    assert parts.match().known_tokens == 2 * BLOCK


async def followed(stand: Stand) -> None:
    """Wait until the router is at the worker's last batch of events."""
    published = stand.worker.host._publishers[0].journal.next_sequence

    def is_there(pods: router_pb2.ListPodsResponse) -> bool:
        [rank] = pods.pods[0].ranks
        # Before the first batch there is no sequence, and protobuf reads that as 0.
        return not published or (rank.HasField("sequence") and rank.sequence >= published - 1)

    await stand.settled(is_there)


@pytest.mark.parametrize(
    "groups",
    [
        "window:16:48",
        "full:16,window:16:48",
        pytest.param("full:16,window:16:48,window:16:128", marks=pytest.mark.deep),
        pytest.param("full:32,window:16:40", marks=pytest.mark.deep),
    ],
)
async def test_hits_of_served_groups_are_predicted(
    tmp_path: Path, model_folder: Path, groups: str
) -> None:
    rng = Random(groups)
    beginnings = [[100 + number] * 40 for number in range(4)]
    prompts: list[list[int]] = [[]]
    hits = 0
    async with standing(tmp_path, model_folder, "vllm", f"--kv-groups={groups}") as stand:
        for _ in range(60):
            grown = rng.choice(prompts[-6:]) + rng.choice(beginnings)
            ids = grown if len(grown) <= 600 else rng.choice(beginnings)
            prompts.append(ids)
            await followed(stand)
            [score] = (await stand.score(packed(ids))).scores
            assert score.trust.level == router_pb2.Trust.EXACT
            assert await stand.generate({"model": "demo", "prompt": ids}) == score.matched_tokens
            hits += score.matched_tokens > 0
    assert hits > 10
