"""Made-up texts for a real vLLM."""

from random import Random

WORDS = (
    "the", "of", "and", "to", "in", "a", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on",
    "not", "he", "his", "but", "at", "are", "this",
)  # fmt: skip


def text(rng: Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))
