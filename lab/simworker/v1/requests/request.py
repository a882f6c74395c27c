"""One request: its tokens so far, the hashes of its full blocks, and the number of computed tokens.

Source: `vllm/v1/request.py` of 0.32, with its names. Left out: fields that only servers, drafters'
grammars and connectors read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, auto
from typing import Any

from warmpath.lab.simworker.v1.hashing.block_hash import BlockHash, BlockHasher
from warmpath.lab.simworker.v1.hashing.extra_keys import LoRARequest


@dataclass(slots=True)
class SamplingParams:
    """The vLLM parameters that change the computed, cached or announced blocks."""

    max_tokens: int = 16
    skip_reading_prefix_cache: bool | None = None
    """Whether to store blocks without looking any up, as for log probabilities of the prompt."""
    extra_args: dict[str, Any] | None = None
    """With `kv_cache_report_mode` "full", found blocks are announced again; default is "incremental"."""

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens: {self.max_tokens}, at least 1")


class RequestStatus(IntEnum):
    """The state of a request. States after PREEMPTED are finished ones."""

    WAITING = auto()
    WAITING_FOR_REMOTE_KVS = auto()
    RUNNING = auto()
    PREEMPTED = auto()
    FINISHED_STOPPED = auto()
    FINISHED_LENGTH_CAPPED = auto()
    FINISHED_ABORTED = auto()
    FINISHED_IGNORED = auto()
    FINISHED_ERROR = auto()

    @staticmethod
    def is_finished(status: "RequestStatus") -> bool:
        return status > RequestStatus.PREEMPTED


class Request:
    """A prompt and the tokens generated so far.

    Without a `block_hasher` none of its blocks is cached.
    """

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        sampling_params: SamplingParams,
        arrival_time: float = 0.0,
        *,
        lora_request: LoRARequest | None = None,
        cache_salt: str | None = None,
        priority: int = 0,
        block_hasher: BlockHasher | None = None,
        session_id: str | None = None,
    ) -> None:
        self.request_id = request_id
        self.arrival_time = arrival_time
        """Seconds on the engine's clock."""
        self.priority = priority
        """Lower comes first."""
        self.lora_request = lora_request
        self.cache_salt = cache_salt
        self.session_id = session_id
        self.max_tokens = sampling_params.max_tokens
        extra_args = sampling_params.extra_args or {}
        self.kv_cache_report_mode: str = extra_args.get("kv_cache_report_mode", "incremental")
        self.skip_reading_prefix_cache = bool(sampling_params.skip_reading_prefix_cache)
        self.status = RequestStatus.WAITING
        self.num_prompt_tokens = len(prompt_token_ids)
        self.num_computed_tokens = 0
        self.num_cached_tokens = -1
        """Tokens found cached when it was first scheduled; -1 before."""
        self.num_preemptions = 0
        self.num_in_flight_tokens = 0
        """Tokens of steps that have not ended; `num_computed_tokens` counts them already."""
        self.shared_prefix_boundary = 0
        """Tokens shared with other requests: sparsely cached groups keep a window there; 0 if none."""
        self._all_token_ids = list(prompt_token_ids)
        self._block_hashes: list[BlockHash] = []
        self._block_hasher = block_hasher
        self.update_block_hashes()

    @property
    def all_token_ids(self) -> Sequence[int]:
        """Prompt and answer, which callers must not change."""
        return self._all_token_ids

    @property
    def prompt_token_ids(self) -> Sequence[int]:
        """A copy of the prompt."""
        return self._all_token_ids[: self.num_prompt_tokens]

    @property
    def block_hashes(self) -> list[BlockHash]:
        """Hashes of the full blocks, of the hasher's size."""
        return self._block_hashes

    @property
    def num_tokens(self) -> int:
        """Prompt and generated tokens."""
        return len(self._all_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return self.num_tokens - self.num_prompt_tokens

    def append_output_token_ids(self, token_ids: int | Sequence[int]) -> None:
        """Append one or several generated tokens; blocks that become full get their hashes."""
        if isinstance(token_ids, int):
            self._all_token_ids.append(token_ids)
        else:
            self._all_token_ids += token_ids
        self.update_block_hashes()

    def update_block_hashes(self) -> None:
        """Hash the full blocks that have no hash yet."""
        if self._block_hasher is not None:
            self._block_hashes += self._block_hasher(self)

    def is_finished(self) -> bool:
        return RequestStatus.is_finished(self.status)

    def __lt__(self, other: "Request") -> bool:
        """Return whether this request comes first under the policy `priority`; equals by arrival."""
        return (self.priority, self.arrival_time, self.request_id) < (
            other.priority,
            other.arrival_time,
            other.request_id,
        )

    def __repr__(self) -> str:
        progress = f"{self.num_computed_tokens} of {self.num_tokens}"
        return f"<{self.request_id}: {progress}, {self.status.name}>"
