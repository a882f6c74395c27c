"""A sequence of tokens, and the group of one request's sequences.

Source: `vllm/sequence.py` of 0.9.2. A sequence knows its tokens, the number of computed ones, and its
status; the block manager knows its blocks. Texts, embeddings, media and times, which 0.9.2 keeps here
too, do not touch memory and are left out.
"""

import enum
import hashlib
from collections.abc import Iterable

from warmpath.lab.simworker.v0.requests.lora import LoRARequest


class SequenceStage(enum.Enum):
    """PREFILL while known tokens are still to be computed, then DECODE, one new token a step."""

    PREFILL = enum.auto()
    DECODE = enum.auto()


class SequenceStatus(enum.IntEnum):
    """The queue of a sequence, or the reason for its end."""

    WAITING = 0
    RUNNING = 1
    SWAPPED = 2
    FINISHED_STOPPED = 3
    FINISHED_LENGTH_CAPPED = 4
    FINISHED_ABORTED = 5
    FINISHED_IGNORED = 6
    """The sequence never ran, since it exceeds the limits or the memory."""

    @staticmethod
    def is_finished(status: "SequenceStatus") -> bool:
        return status > SequenceStatus.SWAPPED


class Sequence:
    """One continuation of a prompt: its tokens, and the number of those that the model has computed.

    After a preemption by recompute, computed tokens start from 0 and the tokens stay: the output so far
    belongs to the new prefill.

    `block_size` is in tokens and has to be the block manager's.
    """

    def __init__(
        self,
        seq_id: int,
        prompt_token_ids: Iterable[int],
        block_size: int,
        lora_request: LoRARequest | None = None,
        *,
        cache_salt: str = "",
    ) -> None:
        self.seq_id = seq_id
        self.block_size = block_size
        self.lora_request = lora_request
        self.cache_salt = cache_salt
        self.status = SequenceStatus.WAITING
        self.stage = SequenceStage.PREFILL
        """DECODE once every known token is computed, until a recompute."""
        self.prompt_token_ids: tuple[int, ...] = tuple(prompt_token_ids)
        self._all_token_ids = list(self.prompt_token_ids)
        self._num_computed_tokens = 0

    @property
    def n_blocks(self) -> int:
        """Blocks that hold the tokens known so far."""
        return -(-self.get_len() // self.block_size)

    @property
    def lora_int_id(self) -> int:
        """The adapter's number; 0 without one."""
        return self.lora_request.lora_int_id if self.lora_request else 0

    def extra_hash(self) -> int | None:
        """Return a hash of adapter and salt for use in block hashes; None without both.

        0.9.2 has adapters and no salts, with which later versions keep tenants' caches apart; a salt has
        the same effect here.
        """
        if self.cache_salt:
            digest = hashlib.blake2b(self.cache_salt.encode(), digest_size=8).digest()
            return hash((int.from_bytes(digest, "little"), self.lora_int_id))
        return hash((0, self.lora_int_id)) if self.lora_int_id else None

    def append_token_id(self, token_id: int) -> None:
        """Append a sampled token."""
        self._all_token_ids.append(token_id)

    def fork(self, new_seq_id: int) -> "Sequence":
        """Return a copy under a new id, with the same tokens, status and computed tokens."""
        child = Sequence(
            new_seq_id,
            self.prompt_token_ids,
            self.block_size,
            self.lora_request,
            cache_salt=self.cache_salt,
        )
        child.status, child.stage = self.status, self.stage
        child._all_token_ids = list(self._all_token_ids)
        child._num_computed_tokens = self._num_computed_tokens
        return child

    def update_num_computed_tokens(self, num_new_computed_tokens: int) -> None:
        """Count tokens as computed; with the last known one the prefill is over.

        Raises AssertionError if more tokens would be computed than the sequence has.
        """
        self._num_computed_tokens += num_new_computed_tokens
        assert self._num_computed_tokens <= self.get_len(), (
            f"{self._num_computed_tokens} computed tokens of {self.get_len()}"
        )
        if self.get_num_uncomputed_tokens() == 0:
            self.stage = SequenceStage.DECODE

    def get_num_uncomputed_tokens(self) -> int:
        return self.get_len() - self._num_computed_tokens

    def reset_state_for_recompute(self) -> None:
        """Start from the first token again: the blocks are lost, the tokens stay."""
        self._num_computed_tokens = 0
        self.stage = SequenceStage.PREFILL

    def get_len(self) -> int:
        return len(self._all_token_ids)

    def get_output_len(self) -> int:
        return len(self._all_token_ids) - len(self.prompt_token_ids)

    def get_token_ids(self) -> list[int]:
        """Return prompt and output: the list itself, which callers must not change."""
        return self._all_token_ids

    def get_last_token_id(self) -> int:
        return self._all_token_ids[-1]

    def get_num_computed_tokens(self) -> int:
        """Tokens whose keys and values the model has computed."""
        return self._num_computed_tokens

    def get_num_new_tokens(self) -> int:
        """Tokens to compute next: 1 in decoding, all uncomputed ones before."""
        if self.stage is SequenceStage.DECODE:
            return 1
        return self.get_num_uncomputed_tokens()

    def is_finished(self) -> bool:
        return SequenceStatus.is_finished(self.status)

    def is_prefill(self) -> bool:
        """Whether known tokens are still to be computed."""
        return self.stage is SequenceStage.PREFILL

    def __repr__(self) -> str:
        return f"Sequence(seq_id={self.seq_id}, status={self.status.name}, blocks={self.n_blocks})"


class SequenceGroup:
    """All sequences of one request: they share its prompt, and are scheduled together or not at all."""

    def __init__(
        self,
        request_id: str,
        seqs: list[Sequence],
        arrival_time: float,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
    ) -> None:
        self.request_id = request_id
        self.seqs = seqs
        self.first_seq = seqs[0]
        self.arrival_time = arrival_time
        self.lora_request = lora_request
        self.priority = priority
        self.num_preemptions = 0

    @property
    def prompt_token_ids(self) -> tuple[int, ...]:
        return self.first_seq.prompt_token_ids

    @property
    def lora_int_id(self) -> int:
        return self.lora_request.lora_int_id if self.lora_request else 0

    def add(self, seq: Sequence) -> None:
        """Add another continuation of the prompt, forked from one of this group."""
        self.seqs.append(seq)

    def get_seqs(self, status: SequenceStatus | None = None) -> list[Sequence]:
        """Return the sequences of one status, or all."""
        if status is None:
            return self.seqs
        return [seq for seq in self.seqs if seq.status == status]

    def get_finished_seqs(self) -> list[Sequence]:
        return [seq for seq in self.seqs if seq.is_finished()]

    def num_seqs(self, status: SequenceStatus | None = None) -> int:
        return len(self.get_seqs(status))

    def num_finished_seqs(self) -> int:
        return len(self.get_finished_seqs())

    def get_max_num_running_seqs(self) -> int:
        """Count the sequences that can still be computed, now or later."""
        return self.num_seqs() - self.num_finished_seqs()

    def update_num_computed_tokens(self, num_new_computed_tokens: int) -> None:
        """Count tokens as computed in every sequence that has not ended."""
        for seq in self.seqs:
            if not seq.is_finished():
                seq.update_num_computed_tokens(num_new_computed_tokens)

    def get_num_uncomputed_tokens(self) -> int:
        """Tokens still to be computed, of all sequences that have not ended."""
        return sum(seq.get_num_uncomputed_tokens() for seq in self.seqs if not seq.is_finished())

    def is_finished(self) -> bool:
        return all(seq.is_finished() for seq in self.seqs)

    @property
    def first_unfinished_seq(self) -> Sequence:
        """The first sequence that has not ended; the others are in the same stage.

        0.9.2 takes the first, ended or not, and fails if that has ended and another is recomputed.
        """
        return next((seq for seq in self.seqs if not seq.is_finished()), self.first_seq)

    def is_prefill(self) -> bool:
        return self.first_unfinished_seq.is_prefill()

    def __repr__(self) -> str:
        return f"SequenceGroup(request_id={self.request_id}, num_seqs={len(self.seqs)})"
