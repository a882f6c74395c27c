"""Simulated workers whose layers keep all tokens, or a window: predictions are what they then report."""

from pathlib import Path
from random import Random

import pytest

from tests.router.service_stand import Stand, packed, standing
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb


async def followed(stand: Stand) -> None:
    """Wait until the router is at the worker's last batch of events."""
    published = stand.worker.host._publishers[0].journal.next_sequence

    def is_there(pods: pb.ListPodsResponse) -> bool:
        [rank] = pods.pods[0].ranks
        # Before the first batch there is no sequence, and protobuf reads that as 0.
        return not published or (rank.HasField("sequence") and rank.sequence >= published - 1)

    await stand.settled(is_there)


async def predicted(stand: Stand, ids: list[int]) -> int:
    [score] = (await stand.score(packed(ids))).scores
    assert score.trust.level == pb.Trust.EXACT
    return int(score.matched_tokens)


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
            expected = await predicted(stand, ids)
            assert await stand.generate({"model": "demo", "prompt": ids}) == expected
            hits += expected > 0
    assert hits > 10
