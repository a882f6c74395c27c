"""Picks for a prompt in no form: by load, of a model or of none; nothing else is inferred."""

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest

from tests.router.error_details import ErrorDetails, details_of
from tests.router.pick_stand import QUIET, UNENDING, Stand, pod, prompt, standing
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.pick.calibration import USUAL_SHARING
from warmpath.scorer.policy import policy_names

NOTHING = pb.Prompt(model="demo")
UNNAMED = pb.Prompt()
OTHER = '[[models]]\nname = "other"\n' + pod("x").replace('"demo"', '"other"')
PODS = QUIET + UNENDING + pod("a") + pod("b") + pod("c") + OTHER


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    async with standing(tmp_path, PODS) as stand:
        yield stand


async def refused(call: object) -> ErrorDetails:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call  # type: ignore[misc]
    return details_of(raised.value)


async def test_it_has_no_tokens_and_goes_to_the_pod_with_the_least_load(stand: Stand) -> None:
    picked = await stand.pick(NOTHING)
    assert picked.prompt_tokens == picked.reckoned_tokens == 0
    assert not picked.reckoned_because
    assert sorted(one.pod for one in picked.candidates) == ["a", "b", "c"]
    others = [(await stand.pick(NOTHING)).candidates[0].pod for _ in range(29)]
    counts = Counter([picked.candidates[0].pod, *others])
    assert counts == {"a": 10, "b": 10, "c": 10}, "each is booked until its end"
    # Another request sees what is booked for them, the part that they share once.
    told = (await stand.explain(prompt(5000))).candidates
    ten = 60 + 9 * (1 - USUAL_SHARING) * 60
    assert [round(one.details.wait_seconds / ten, 1) for one in told] == [1.0, 1.0, 1.0]


async def test_a_report_releases_it_like_any_other(stand: Stand) -> None:
    first = await stand.pick(NOTHING, booking_id="attempt-1")
    best = first.candidates[0].pod
    told = {one.pod: one for one in (await stand.explain(NOTHING)).candidates}
    assert told[best].details.in_flight == 1
    assert await stand.report("attempt-1", "FINISHED")
    told = {one.pod: one for one in (await stand.explain(NOTHING)).candidates}
    assert told[best].details.in_flight == 0
    [decision] = await stand.decisions()
    assert (decision.model, decision.prompt_tokens) == ("demo", 0)
    assert "0 tokens" in decision.reason


async def test_without_a_model_any_pod_that_is_named_may_take_it(stand: Stand) -> None:
    for _ in range(8):
        picked = await stand.pick(UNNAMED, pods=["x", "a", "nowhere"])
        assert sorted(one.pod for one in picked.candidates) == ["a", "x"]
    everywhere = await stand.explain(UNNAMED)
    assert sorted(one.pod for one in everywhere.candidates) == ["a", "b", "c", "x"]
    told = {one.pod: one.details.in_flight for one in everywhere.candidates}
    assert told == {"a": 4, "b": 0, "c": 0, "x": 4}


async def test_what_cannot_be_picked_for_is_refused_with_its_reason(stand: Stand) -> None:
    nowhere = await refused(stand.pick(UNNAMED, pods=["nowhere"]))
    assert (nowhere.code, nowhere.reason) == (grpc.StatusCode.UNAVAILABLE, "NO_POD")
    unknown = await refused(stand.pick(pb.Prompt(model="unheard-of")))
    assert (unknown.code, unknown.reason) == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_MODEL")
    item = pb.MultimodalItem(hash="h", offset=0, length=1)
    items = await refused(stand.pick(pb.Prompt(model="demo", multimodal=[item])))
    assert (items.reason, items.metadata) == ("BAD_REQUEST", {"field": "prompt.multimodal"})
    long = await refused(stand.explain(pb.Prompt(lora="l" * 2000)))
    assert (long.reason, long.metadata) == ("BAD_REQUEST", {"field": "prompt.lora"})
    unnamed = await refused(stand.pick(pb.Prompt(token_ids=pb.TokenIds(ids=[1]))))
    assert (unnamed.reason, unnamed.metadata) == ("BAD_REQUEST", {"field": "prompt.model"})
    for one in (NOTHING, UNNAMED):
        scored = await refused(stand.stub.Score(pb.ScoreRequest(prompt=one)))
        assert (scored.reason, scored.metadata) == ("BAD_REQUEST", {"field": "prompt"})


@pytest.mark.parametrize(
    "prompt",
    [
        pb.Prompt(model="demo", text=""),
        pb.Prompt(chat_body=b'{"model": "demo", "messages": 5}'),
        pb.Prompt(completions_body=b'{"model": "demo", "prompt": {}}'),
    ],
    ids=["empty text", "chat", "completion"],
)
async def test_what_is_wrong_with_a_prompt_is_refused_as_ever(
    stand: Stand, prompt: pb.Prompt
) -> None:
    assert (await refused(stand.pick(prompt))).code is grpc.StatusCode.INVALID_ARGUMENT


async def test_it_measures_nothing(stand: Stand) -> None:
    for number in range(40):
        name = f"attempt-{number}"
        await stand.pick(NOTHING, booking_id=name)
        assert await stand.report(name, "FIRST_TOKEN")
        assert await stand.report(name, "FINISHED", cached_tokens=500, prompt_tokens=1000)
    diagnosis = await stand.diagnose()
    assert sum(one.requests for one in diagnosis.attributions) == 40
    for one in diagnosis.attributions:
        assert one.reported_requests == one.delivered_tokens == one.predicted_tokens == 0
    kinds = {one.kind for one in diagnosis.findings}
    assert not kinds & {"gap", "predictions", "cached-tokens", "calibration"}


async def test_it_goes_to_two_pods_where_prefill_and_decoding_are_apart(tmp_path: Path) -> None:
    pods = QUIET + pod("p", role="prefill") + pod("d", role="decode")
    async with standing(tmp_path, pods) as stand:
        for one in (NOTHING, UNNAMED):
            picked = await stand.pick(one, disaggregated=True)
            assert [option.pod for option in picked.candidates] == ["p"]
            assert [option.pod for option in picked.decode_candidates] == ["d"]


@pytest.mark.parametrize("policy", policy_names())
async def test_every_policy_picks_for_it(stand: Stand, policy: str) -> None:
    for one in (NOTHING, UNNAMED):
        for _ in range(5):
            picked = await stand.pick(one, policy=policy, session_id="s")
            assert picked.candidates[0].pod
            assert picked.candidates[0].cost >= 0
