"""Token ids to scores in process: the embedded index against the reference one."""

from collections.abc import Callable
from random import Random

from bench.figure import Figure
from bench.fleet import BLOCK_SIZE, MODEL, batches_of, feed, new_ingest, prompt_of
from bench.timing import take_turns
from indexer.index import Index
from indexer.memory import MemoryIndex
from indexer.reference import ReferenceIndex
from indexer.token import pack_tokens
from router.score import Scorer, TokenPrompt
from scorer.longest_prefix import longest_prefix

TOKENS = 10_000
PODS = 64
HOLDERS = 8


def measure(*, quick: bool) -> list[Figure]:
    """Measure scoring prompts of 10,000 ids that 8 of 64 pods hold, another one each time."""
    prompts = 4 if quick else 100
    rng = Random(1)
    ids = [prompt_of(rng, TOKENS) for _ in range(prompts)]
    packed = [TokenPrompt(MODEL, pack_tokens(prompt)) for prompt in ids]
    backends: dict[str, Index] = {"memory": MemoryIndex(), "reference": ReferenceIndex()}
    ways = {name: _scoring(index, ids, packed) for name, index in backends.items()}
    seconds = take_turns(ways, rounds=3 if quick else 15)
    return [
        Figure(
            f"score {TOKENS:,} ids, {HOLDERS} holders of {PODS} pods, in process",
            seconds["memory"] / prompts * 1e6,
            "us",
            "the reference index's",
            seconds["memory"] / seconds["reference"],
        )
    ]


def _scoring(index: Index, ids: list[list[int]], prompts: list[TokenPrompt]) -> Callable[[], None]:
    """Fill an index and return what scores every prompt once."""
    rng = Random(2)
    ingest, ranks = new_ingest(index, PODS)
    for prompt in ids:
        batches = list(batches_of(rng, prompt, events=1, blocks=TOKENS // BLOCK_SIZE))
        for rank in rng.sample(ranks, HOLDERS):
            feed(rank, batches)
    scorer = Scorer(ingest, "")

    def score() -> None:
        for prompt in prompts:
            found = sum(one.score > 0 for one in scorer.score(prompt, ranks, longest_prefix))
            assert found == HOLDERS

    return score
