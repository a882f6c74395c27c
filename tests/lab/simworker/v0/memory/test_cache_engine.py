"""One suite for every backend of the cache: blocks are really copied."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lab.simworker.v0.array_backends import BACKENDS, array_backend
from warmpath.lab.simworker.v0.device import Device
from warmpath.lab.simworker.v0.memory.array_backend import DTYPES
from warmpath.lab.simworker.v0.memory.block_content import BlockContent
from warmpath.lab.simworker.v0.memory.cache_engine import CacheEngine, CacheShape
from warmpath.lab.simworker.v0.memory.numpy_backend import NumpyBackend

Engine = CacheEngine[Any]


def shape(**changes: Any) -> CacheShape:
    return CacheShape(
        **{"num_layers": 2, "block_size": 3, "num_kv_heads": 2, "head_size": 4, **changes}
    )


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Any:
    return array_backend(request.param)


@pytest.fixture
def engine(backend: Any) -> Engine:
    return CacheEngine(shape(), 4, 3, backend)


def block(engine: Engine, fill: int) -> bytes:
    one = engine.shape
    return bytes((fill + at) % 256 for at in range(one.block_size * one.slot_elements))


def put(engine: Engine, cache: list[Any], block_id: int, content: bytes) -> None:
    slots = range(engine.shape.block_size)
    for layer, array in enumerate(cache):
        # Each layer differs, so that a copy to the wrong one shows.
        shifted = bytes((element + layer) % 256 for element in content)
        engine.backend.write(array, [block_id] * len(slots), slots, shifted)


def get(engine: Engine, cache: list[Any], block_id: int) -> bytes:
    first, *others = [engine.backend.read(array, [block_id]) for array in cache]
    for layer, content in enumerate(others, 1):
        assert content == bytes((element + layer) % 256 for element in first)
    return first


def test_a_cache_is_zero_at_first_and_has_the_engines_shape(engine: Engine) -> None:
    for cache, blocks in [(engine.gpu_cache, 4), (engine.cpu_cache, 3)]:
        assert [tuple(array.shape) for array in cache] == [(2, blocks, 3, 2, 4)] * 2
        assert all(
            engine.backend.read(array, range(blocks)) == bytes(48 * blocks) for array in cache
        )


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_holds_what_is_written(backend: Any, dtype: str) -> None:
    engine: Engine = CacheEngine(shape(num_kv_heads=8, head_size=8, dtype=dtype), 2, 1, backend)
    content = block(engine, 0)
    assert set(content) == set(range(256))
    put(engine, engine.gpu_cache, 1, content)
    assert get(engine, engine.gpu_cache, 1) == content
    assert set(engine.backend.read(engine.gpu_cache[0], [0])) == {0}


@pytest.mark.parametrize(("dtype", "size"), list(zip(DTYPES, (4, 2, 2, 1), strict=True)))
def test_an_array_has_its_types_bytes(dtype: str, size: int) -> None:
    engine = CacheEngine(shape(dtype=dtype), 5, 0, NumpyBackend())
    assert sum(array.nbytes for array in engine.gpu_cache) == 5 * 2 * 2 * 3 * 2 * 4 * size


@pytest.mark.parametrize("pair", [(4, 0), (0, 4), (-1, 0), (0, -1)])
def test_a_block_that_is_not_there_is_refused_and_nothing_copied(
    engine: Engine, pair: tuple[int, int]
) -> None:
    put(engine, engine.gpu_cache, 0, block(engine, 5))
    with pytest.raises(
        ValueError, match=re.escape(f"blocks {pair[0]} to {pair[1]}: there are 4 and 4")
    ):
        engine.copy([(0, 1), pair])
    assert not any(engine.backend.read(engine.gpu_cache[0], [1]))


def test_a_swap_knows_how_many_blocks_each_device_has(engine: Engine) -> None:
    with pytest.raises(ValueError, match="there are 4 and 3"):
        engine.swap_out([(3, 3)])
    with pytest.raises(ValueError, match="there are 3 and 4"):
        engine.swap_in([(3, 3)])


@pytest.mark.parametrize("field", ["num_layers", "block_size", "num_kv_heads", "head_size"])
def test_a_shape_without_anything_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field}: 0"):
        shape(**{field: 0})


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(ValueError, match="dtype: 'int4'"):
        shape(dtype="int4")


PAIRS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=4)


@pytest.mark.parametrize("name", BACKENDS)
@given(
    moves=st.lists(
        st.tuples(st.sampled_from(["swap_in", "swap_out", "copy", "write"]), PAIRS), max_size=6
    )
)
def test_all_blocks_hold_what_a_list_of_blocks_would(
    name: str, moves: list[tuple[str, list[tuple[int, int]]]]
) -> None:
    engine: Engine = CacheEngine(shape(), 3, 3, array_backend(name))
    held = {"gpu": [-1] * 3, "cpu": [-1] * 3}
    for number, (move, pairs) in enumerate(moves):
        if move == "write":
            for block_id, _ in pairs:
                put(engine, engine.gpu_cache, block_id, block(engine, number))
                held["gpu"][block_id] = number
            continue
        source, destination = {
            "swap_in": ("cpu", "gpu"),
            "swap_out": ("gpu", "cpu"),
            "copy": ("gpu", "gpu"),
        }[move]
        getattr(engine, move)(pairs)
        for from_block, to_block in pairs:
            held[destination][to_block] = held[source][from_block]
    for device, cache in [("gpu", engine.gpu_cache), ("cpu", engine.cpu_cache)]:
        for block_id, fill in enumerate(held[device]):
            if fill < 0:
                assert all(not any(engine.backend.read(array, [block_id])) for array in cache)
            else:
                assert get(engine, cache, block_id) == block(engine, fill)


TOKENS = list(range(10, 18))


def test_a_sequence_computed_in_parts_reads_back_as_computed_at_once(engine: Engine) -> None:
    content = BlockContent(engine)
    content.compute([2, 0, 3], TOKENS, range(5))
    content.compute([2, 0, 3], TOKENS, range(5, 8))
    assert not list(content.find_wrong(Device.GPU, [2, 0, 3], TOKENS))
    content.compute([2, 0, 3], TOKENS, range(8))
    assert not list(content.find_wrong(Device.GPU, [2, 0, 3], TOKENS))


def test_what_was_not_computed_or_overwritten_is_told(engine: Engine) -> None:
    content = BlockContent(engine)
    content.compute([2, 0, 3], TOKENS, range(7))
    assert list(content.find_wrong(Device.GPU, [2, 0, 3], TOKENS)) == [(0, 7), (1, 7)]
    content.compute([0], [99], range(1))
    assert list(content.find_wrong(Device.GPU, [2, 0, 3], TOKENS[:7])) == [(0, 3), (1, 3)]


def test_what_is_computed_from_wrong_content_is_wrong(engine: Engine) -> None:
    content = BlockContent(engine)
    content.compute([2, 0, 3], TOKENS, range(4, 8))
    assert [
        at for layer, at in content.find_wrong(Device.GPU, [2, 0, 3], TOKENS) if layer == 0
    ] == list(range(8))


def test_other_tokens_before_or_another_adapter_is_other_content(engine: Engine) -> None:
    content = BlockContent(engine)
    content.compute([0], [1, 2, 3], range(3))
    assert list(content.find_wrong(Device.GPU, [0], [1, 2, 3], extra_hash=7))
    content.compute([1], [9, 2, 3], range(3))
    assert (
        engine.backend.read(engine.gpu_cache[0], [0])[16:]
        != engine.backend.read(engine.gpu_cache[0], [1])[16:]
    )


def test_blocks_that_a_window_dropped_are_not_read(engine: Engine) -> None:
    content = BlockContent(engine)
    content.compute([2, 0, 3], TOKENS, range(8))
    content.compute([2], [99], range(1))
    assert list(content.find_wrong(Device.GPU, [2, 0, 3], TOKENS))
    assert not list(content.find_wrong(Device.GPU, [None, 0, 3], TOKENS))


def test_a_token_without_a_slot_is_refused(engine: Engine) -> None:
    with pytest.raises(ValueError, match="no slot for the token at 6"):
        BlockContent(engine).compute([2, 0], TOKENS, range(7))
