"""A sequence's tokens, and the number of computed ones.

Source: `SequenceData` in `vllm/sequence.py` of 0.9.2.
"""

import enum
from collections.abc import Iterable


class SequenceStage(enum.Enum):
    """PREFILL while known tokens are still to be computed, then DECODE, one new token a step."""

    PREFILL = enum.auto()
    DECODE = enum.auto()


class SequenceData:
    """A sequence's tokens, and the number of those that the model has computed.

    After a preemption by recompute, computed tokens start from 0 and the tokens stay: the output so far
    belongs to the new prefill.
    """

    def __init__(
        self, prompt_token_ids: Iterable[int], output_token_ids: Iterable[int] = ()
    ) -> None:
        self.prompt_token_ids = tuple(prompt_token_ids)
        self._all_token_ids = [*self.prompt_token_ids, *output_token_ids]
        self.cumulative_logprob = 0.0
        self._num_computed_tokens = 0
        self._stage = SequenceStage.PREFILL

    def copy(self) -> "SequenceData":
        twin = SequenceData(self.prompt_token_ids, self.output_token_ids)
        twin.cumulative_logprob = self.cumulative_logprob
        twin._num_computed_tokens = self._num_computed_tokens
        twin._stage = self._stage
        return twin

    @property
    def output_token_ids(self) -> tuple[int, ...]:
        return tuple(self._all_token_ids[len(self.prompt_token_ids) :])

    @property
    def stage(self) -> SequenceStage:
        """DECODE once every known token is computed, until a recompute."""
        return self._stage

    def append_token_id(self, token_id: int, logprob: float) -> None:
        self._all_token_ids.append(token_id)
        self.cumulative_logprob += logprob

    def get_len(self) -> int:
        return len(self._all_token_ids)

    def get_prompt_len(self) -> int:
        return len(self.prompt_token_ids)

    def get_output_len(self) -> int:
        return len(self._all_token_ids) - len(self.prompt_token_ids)

    def get_token_ids(self) -> list[int]:
        return self._all_token_ids

    def get_prompt_token_ids(self) -> tuple[int, ...]:
        return self.prompt_token_ids

    def get_output_token_ids(self) -> tuple[int, ...]:
        return self.output_token_ids

    def get_last_token_id(self) -> int:
        return self._all_token_ids[-1]

    def get_num_computed_tokens(self) -> int:
        return self._num_computed_tokens

    def update_num_computed_tokens(self, num_new_computed_tokens: int) -> None:
        """Count tokens as computed; with the last known one the prefill is over.

        Raises AssertionError if more tokens would be computed than the sequence has.
        """
        self._num_computed_tokens += num_new_computed_tokens
        assert self._num_computed_tokens <= self.get_len(), (
            f"{self._num_computed_tokens} computed tokens of {self.get_len()}"
        )
        if self.get_num_uncomputed_tokens() == 0:
            self._stage = SequenceStage.DECODE

    def get_num_uncomputed_tokens(self) -> int:
        return self.get_len() - self._num_computed_tokens

    def reset_state_for_recompute(self) -> None:
        """Start from the first token again: the blocks are lost, the tokens stay."""
        self._num_computed_tokens = 0
        self._stage = SequenceStage.PREFILL
