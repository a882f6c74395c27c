"""An answer to Score shows each rank as it is now, whatever an earlier answer has left in the answerer."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.indexer.sides import CLEARED, Side, stored
from warmpath.indexer.keys.key import pack_tokens
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.wire.v1 import score_request_pb2 as wire
from warmpath.router.calls.score import Answerer
from warmpath.router.match.match import Scorer
from warmpath.router.pods.table import Pod, PodTable, Status
from warmpath.router.prompt.plain import PlainPrompt
from warmpath.router.prompt.token_prompt import ReadPrompt, TokenPrompt

PODS = st.sampled_from(["a", "b", "c"])
RANKS = st.integers(0, 1)
STEPS = st.one_of(
    st.tuples(st.just("add"), PODS, st.integers(0, 2)),
    st.tuples(st.sampled_from(["remove", "fail", "recover"]), PODS),
    st.tuples(st.sampled_from(["connect", "disconnect", "limit", "free", "clear"]), PODS, RANKS),
    st.tuples(st.just("store"), PODS, RANKS, st.integers(1, 3)),
)
IDS = list(range(13))


class ReadIds:
    """Reads prompts of ids."""

    def read_plain(self, prompt: PlainPrompt) -> ReadPrompt:
        return ReadPrompt(TokenPrompt(prompt.model, prompt.ids), 0)


class Fleet:
    """Pods that come, change and go, and answers about them."""

    def __init__(self) -> None:
        self.side = Side("compiled")
        self.pods = PodTable()
        self.of: dict[str, Pod] = {}

    def answerer(self) -> Answerer:
        scorer = Scorer(self.side.ingest, "")
        return Answerer(ReadIds(), scorer, self.pods, clock=lambda: 0.0, wall_offset=lambda: 0.0)  # type: ignore[arg-type]

    def change(self, name: str, pod: str, *more: int) -> None:
        if name == "add" and pod not in self.of:
            ranks = tuple(self.side.rank(pod, number) for number in range(more[0]))
            self.of[pod] = Pod(pod, "", "m", ranks, has_events=bool(ranks))
            self.pods.add(self.of[pod])
        elif name != "add" and pod in self.of:
            getattr(self, name)(self.of[pod], *more)

    def remove(self, pod: Pod) -> None:
        self.pods.remove(self.of.pop(pod.id).id)
        for rank in pod.ranks:
            self.side.ingest.remove(pod.id, rank.number)
            self.side.sequence.pop((pod.id, rank.number))

    def fail(self, pod: Pod) -> None:
        pod.status = Status(healthy=False)

    def recover(self, pod: Pod) -> None:
        pod.status = Status(healthy=True)

    def connect(self, pod: Pod, number: int) -> None:
        for rank in pod.ranks[number : number + 1]:
            rank.connected()  # type: ignore[attr-defined]

    def disconnect(self, pod: Pod, number: int) -> None:
        for rank in pod.ranks[number : number + 1]:
            rank.disconnected()  # type: ignore[attr-defined]

    def limit(self, pod: Pod, number: int) -> None:
        for rank in pod.ranks[number : number + 1]:
            rank.limit("a reason", "it")

    def free(self, pod: Pod, number: int) -> None:
        for rank in pod.ranks[number : number + 1]:
            rank.limit("", "it")

    def clear(self, pod: Pod, number: int) -> None:
        if number < len(pod.ranks):
            self.side.send(pod.id, CLEARED, number=number)

    def store(self, pod: Pod, number: int, blocks: int) -> None:
        if number < len(pod.ranks):
            event = stored(range(1, blocks + 1), IDS[: 4 * blocks], None, 4)
            self.side.send(pod.id, event, number=number)


def answer(answerer: Answerer) -> pb.ScoreResponse:
    scored = answerer.score_at_once(wire.ScoreRequest(), PlainPrompt("m", pack_tokens(IDS)))
    assert scored is not None
    return pb.ScoreResponse.FromString(scored.response)


@given(steps=st.lists(STEPS, max_size=25))
@settings(max_examples=examples(500))
def test_an_answer_is_that_of_an_answerer_that_has_answered_nothing_before(
    steps: list[tuple[str, str, int]],
) -> None:
    fleet = Fleet()
    answerer = fleet.answerer()
    for name, pod, *more in steps:
        fleet.change(name, pod, *more)
        assert answer(answerer) == answer(fleet.answerer())


def test_matches_of_ranks_that_hold_alike_and_of_one_that_does_not() -> None:
    fleet = Fleet()
    for pod, blocks in (("a", 2), ("b", 2), ("c", 3)):
        fleet.change("add", pod, 1)
        fleet.change("store", pod, 0, blocks)
    assert [one.matched_tokens for one in answer(fleet.answerer()).scores] == [8, 8, 12]
