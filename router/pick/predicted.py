"""The predictions of a pick, which its engine's reports are compared with later."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from warmpath.indexer.rank import Rank
from warmpath.router.match.match import NOTHING
from warmpath.router.pick.options import Option, Options
from warmpath.router.pods.table import Pod
from warmpath.scorer.match import Match


class Predicted(NamedTuple):
    """The prediction for a candidate."""

    held: int
    """Tokens that a request would find cached."""
    cached: int
    """The part of `held` that was counted as cached."""
    wait: float
    """Seconds until its prefill would begin."""
    prefill: float
    """Seconds that its prefill would take."""
    shared: float = 0.0
    """Seconds of `prefill` that it shares with others (`Candidate.shared`)."""
    factor: float = 1.0
    """The rank's calibration factor."""
    room: int = 0
    """Most blocks that may be assumed on the rank; 0 if its events are complete."""
    believed: int = 0
    """Tokens of `held` that no event has announced."""


def predicted(option: Option, prompt_tokens: int, room: int) -> Predicted:
    """Return the prediction for an option."""
    candidate = option.candidate
    tokens = held(option.match, prompt_tokens)
    return Predicted(
        tokens,
        candidate.cached,
        candidate.load.wait,
        candidate.prefill,
        candidate.shared,
        option.calibration,
        room,
        max(0, tokens - option.match.known_tokens),
    )


def held(match: Match, prompt_tokens: int) -> int:
    """Return the tokens that a request would find cached; the last one never is."""
    return min(match.matched_tokens, max(0, prompt_tokens - 1))


class Predictions(Mapping[tuple[str, int], Predicted]):
    """The predictions for all candidates, by pod and rank; made on access, as only one will be used.

    Picks that are never reported wait for minutes, so only the figures are kept that are needed then.
    """

    def __init__(
        self, options: Options, prompt_tokens: int, room: Callable[[Pod, Rank], int]
    ) -> None:
        """Predict for these options; `room` returns the most blocks that may be assumed on a rank."""
        self._field = options.field
        self._matches = options.matches
        self._figures = options.expectations()
        self._shared = options.shared
        self._prompt_tokens = prompt_tokens
        self._room = room

    def __getitem__(self, name: tuple[str, int]) -> Predicted:
        place = self._field.places[name]
        pod, rank = self._field.pods[place], self._field.ranks[place]
        match = self._matches.get(rank, NOTHING)
        cached, wait, prefill, factor = self._figures[:, place].tolist()
        shared = self._shared * factor
        tokens = held(match, self._prompt_tokens)
        believed = max(0, tokens - match.known_tokens)
        return Predicted(
            tokens, int(cached), wait, prefill, shared, factor, self._room(pod, rank), believed
        )

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(self._field.names)

    def __len__(self) -> int:
        return len(self._field.names)
