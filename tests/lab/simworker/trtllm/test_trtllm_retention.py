"""What a request asks to be kept, block by block."""

import pytest

from warmpath.lab.simworker.trtllm.blocks.retention import KvCacheRetentionConfig
from warmpath.lab.simworker.trtllm.blocks.retention import TokenRangeRetentionConfig as Range


@pytest.mark.parametrize(
    ("ranges", "block_size", "length", "expected"),
    [
        ([], 4, 9, [None, None, None]),
        ([(0, 8, 80), (8, 16, 50)], 8, 32, [80, 50, None, None]),
        ([(0, 7, 80), (7, 15, 30)], 4, 15, [80, 80, 30, 30]),
        ([(0, 1, 80), (1, 2, 5)], 4, 16, [80, None, None, None]),
        ([(0, 16, 80)], 32, 24, [80]),
        ([(0, 9, 80), (9, 17, 30)], 8, 24, [80, 80, 30]),
        ([(17, None, 50), (0, 8, 80)], 8, 32, [80, None, None, 50]),
        ([(15, 25, 80)], 8, 4, [None]),
        ([(1, None, 80)], 8, 16, [None, 80]),
    ],
)
def test_the_range_of_its_first_token_decides_for_a_block(
    ranges: list[tuple[int, int | None, int]],
    block_size: int,
    length: int,
    expected: list[int | None],
) -> None:
    config = KvCacheRetentionConfig([Range(*one) for one in ranges])
    found = config.get_per_block_retention(block_size, length)
    assert [one.priority for one in found] == expected


def test_durations_go_with_their_range() -> None:
    config = KvCacheRetentionConfig([Range(0, 4, 80, 1000), Range(4, 8, 60)])
    assert [one.duration_ms for one in config.get_per_block_retention(4, 12)] == [1000, None, None]


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ([(0, None, 80), (64, 128, 80)], "only the last range may be open"),
        ([(0, 64, 80), (64, 32, 80)], "token_end 32"),
        ([(0, 64, 80), (30, 128, 80)], "must not overlap"),
        ([(-1, 64, 80)], "token_start -1"),
        ([(0, 64, 101)], "priority is 101; it must be 0 to 100"),
        ([(0, 64, 50, -1)], "-1 ms; it must be 0 or more"),
    ],
)
def test_ranges_that_make_no_sense_are_refused(ranges: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KvCacheRetentionConfig([Range(*one) for one in ranges])


def test_a_priority_of_decoding_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="decode_priority is -1"):
        KvCacheRetentionConfig(decode_priority=-1)
