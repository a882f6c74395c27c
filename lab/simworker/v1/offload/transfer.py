"""Jobs of offloading, which copy blocks, and the times of these copies.

Loads and stores use the bus at the same time; in each direction jobs run in order, at the bus's
bandwidth:

    end of a job = max(now, end of the job before it) + blocks x bytes a block / bandwidth

A step's loads begin with the step, its stores when it has computed, which is when the next step begins.
Jobs that a step must flush begin at once, and the step waits for them.

Source: `vllm/distributed/kv_transfer/kv_connector/v1/offloading/worker.py` and
`vllm/v1/kv_offload/cpu/gpu_worker.py` of 0.32, with a stream for each direction; the formula is ours.
"""

from dataclasses import dataclass

from warmpath.lab.simworker.engine import BrokenInvariantError

NULL_BLOCK_ID = 0


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """The places of one block's content on the GPU and in host memory."""

    gpu_block_id: int
    chunk_id: int
    part: int
    """The block's position within the chunk."""


@dataclass(frozen=True, slots=True)
class TransferJob:
    """Blocks to copy for one request, in one direction."""

    req_id: str
    is_store: bool
    copies: tuple[BlockCopy, ...]


@dataclass(slots=True)
class OffloadingMetadata:
    """The offloading of one step."""

    load_jobs: dict[int, TransferJob]
    store_jobs: dict[int, TransferJob]
    """Number -> a job that begins when the step has computed."""
    jobs_to_flush: set[int]
    """Jobs that must end before the step computes; this step's own stores may be among them."""


PCIE_4_X16 = 31.5e9
"""Bytes a second in one direction: 16 lanes of 16 GT/s, 128 of 130 bits are data (PCI-SIG)."""


class TransferWorker:
    """The two directions of one bus. Times are seconds of the caller's clock.

    Raises ValueError unless `bytes_per_block` (of one block in all layers of a rank) and `bandwidth`
    (bytes a second) are above 0.
    """

    def __init__(self, bytes_per_block: int, bandwidth: float = PCIE_4_X16) -> None:
        if bytes_per_block <= 0:
            raise ValueError(f"bytes_per_block: {bytes_per_block}, above 0")
        if not bandwidth > 0:
            raise ValueError(f"bandwidth: {bandwidth} bytes a second, above 0")
        self._seconds_per_block = bytes_per_block / bandwidth
        self._free_at = {False: 0.0, True: 0.0}
        """Load or store -> when the last job of that direction ends."""
        self._ends: dict[int, float] = {}
        """Job under way -> when it ends."""
        self._deferred: dict[int, TransferJob] = {}
        """Stores that begin with the next step."""

    def begin_step(self, metadata: OffloadingMetadata, now: float) -> float:
        """Begin a step's transfers; return the seconds for which the step waits before it computes."""
        for number, job in self._deferred.items():
            self._submit(number, job, now)
        self._deferred = {}
        flush = metadata.jobs_to_flush
        for number, job in metadata.store_jobs.items():
            if number in flush:
                self._submit(number, job, now)
            else:
                self._deferred[number] = job
        for number, job in metadata.load_jobs.items():
            self._submit(number, job, now)
        return max([now, *(self._ends[number] for number in flush & self._ends.keys())]) - now

    def get_finished(self, now: float) -> list[int]:
        """Return the jobs that have ended since the last call, in the order of their ends."""
        ended = [number for number, end in self._ends.items() if end <= now]
        ended.sort(key=lambda number: (self._ends[number], number))
        for number in ended:
            del self._ends[number]
        return ended

    def next_end(self) -> float | None:
        """Return the time at which the next job ends; None while none is under way."""
        return min(self._ends.values(), default=None)

    def _submit(self, number: int, job: TransferJob, now: float) -> None:
        begin = max(now, self._free_at[job.is_store])
        end = begin + len(job.copies) * self._seconds_per_block
        self._free_at[job.is_store] = self._ends[number] = end

    def check(self) -> None:
        """Raise BrokenInvariantError if a job both runs and waits, or ends too late."""
        if self._ends.keys() & self._deferred.keys():
            raise BrokenInvariantError("a store is under way and deferred")
        if any(end > max(self._free_at.values()) for end in self._ends.values()):
            raise BrokenInvariantError("a job ends after its direction is free")
