"""The block manager: groups that are moved to the CPU and back."""

from tests.lab.simworker.v0.managers import (
    RUNNING,
    SIZE,
    SWAPPED,
    admitted,
    manager_of,
    sample,
    set_status,
)
from warmpath.lab.simworker.v0.device import Device
from warmpath.lab.simworker.v0.engine import Chunk, Worker
from warmpath.lab.simworker.v0.memory.cache_engine import CacheEngine, CacheShape
from warmpath.lab.simworker.v0.memory.numpy_backend import NumpyBackend
from warmpath.lab.simworker.v0.requests.sequence import Sequence


def test_a_copy_given_up_does_not_overwrite_a_block_swapped_in() -> None:
    manager = manager_of(gpu=4, cpu=4, enable_caching=True)
    worker = Worker(CacheEngine(CacheShape(1, SIZE, 1, 4), 4, 4, NumpyBackend()))

    def chunks(*seqs: Sequence) -> list[Chunk]:
        return [
            Chunk(manager.get_block_table(seq), list(seq.get_token_ids()), range(seq.get_len()))
            for seq in seqs
        ]

    # The content [1, 2, 3, 4] is cached; a fork shares a block that holds [1, 2, 3].
    cached = admitted(manager, 1, [1, 2, 3, 4])
    away = admitted(manager, 2, [7, 7, 7])
    worker.execute_model(chunks(*cached.seqs, *away.seqs), [], [], [])
    out = manager.swap_out(away)
    set_status(away, SWAPPED)
    group = admitted(manager, 3, [1, 2, 3], count=2)
    worker.execute_model(chunks(*group.seqs), [], out, [])
    # Appending 4 copies the shared block, and gives the copy up for the cached one. The block that
    # was to be the copy is then taken for what comes back from the CPU.
    first = group.seqs[0]
    sample(first, 4)
    copies = manager.append_slots(first, 0)
    back = manager.swap_in(away)
    set_status(away, RUNNING)
    assert copies[0][1] == back[0][1]
    worker.execute_model(chunks(first), back, [], copies)
    table = manager.get_block_table(away.seqs[0])
    assert not list(worker.content.find_wrong(Device.GPU, table, [7, 7, 7]))
    # Swapped in first, as 0.9.2 does, it would be lost.
    worker.cache_engine.swap_in(back)
    worker.cache_engine.copy(copies)
    assert list(worker.content.find_wrong(Device.GPU, table, [7, 7, 7]))
