"""Events that a caller made: every field is checked before any event is applied."""

import doctest
from dataclasses import replace

import pytest

from warmpath.indexer.engines import event
from warmpath.indexer.engines.event import (
    Cleared,
    Event,
    MalformedEventError,
    Moved,
    Removed,
    Stored,
    Tier,
    name_of,
)
from warmpath.indexer.engines.vllm import BlockStored
from warmpath.indexer.keys.key import pack_tokens
from warmpath.library.check_events import check_events

STORED = Stored.of([1, 2], range(8), block_size=4, parent=b"digest", tier="cpu", lora="a")
SAID = BlockStored([1], None, [1], 1)


def test_values_of_any_form_become_those_that_a_codec_makes() -> None:
    assert (
        Stored((1, 2), name_of(b"digest"), pack_tokens(range(8)), 4, tier=Tier.CPU, lora="a")
        == STORED
    )
    assert Removed.of([-1, b"x"]) == Removed(((1 << 64) - 1, name_of(b"x")))
    assert Moved.of(1, source="gpu", target="disk") == Moved(1, Tier.GPU, Tier.DISK)
    assert not doctest.testmod(event).failed


def test_what_a_codec_can_make_is_accepted() -> None:
    check_events(
        [
            STORED,
            replace(STORED, tokens=None, block_size=0),
            replace(STORED, extras=(b"x", None)),
            Removed((1,)),
            Removed((), tier=None),
            Moved(1, Tier.GPU, Tier.CPU),
            Cleared(),
        ]
    )


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        (replace(STORED, hashes=(1, 1 << 64)), r"hashes holds a number that is not 0 to 2\^64 - 1"),
        (replace(STORED, hashes=(1, -1)), r"hashes holds a number that is not 0 to 2\^64 - 1"),
        (replace(STORED, hashes=[1, 2]), "hashes holds something else than integers in a tuple"),
        (replace(STORED, hashes=(1, True)), "hashes holds something else than integers"),
        (replace(STORED, parent="a"), "parent holds something else than integers"),
        (replace(STORED, tokens=list(range(8))), "tokens are not bytes; Stored.of packs integers"),
        (replace(STORED, tokens=b"\0" * 28), "tokens are 7; 2 blocks of 4 have 8"),
        (replace(STORED, block_size=0), "block_size is 0; it must be 1 to 1048576"),
        (replace(STORED, block_size=1 << 21), "block_size is 2097152; it must be 1 to 1048576"),
        (replace(STORED, block_size=4.0), "block_size is 4.0; it must be 1 to 1048576"),
        (replace(STORED, tier="gpu"), "tier is 'gpu'; it must be one of gpu, cpu, disk, remote"),
        (replace(STORED, lora=None), "lora is not a string"),
        (replace(STORED, extras=(b"x",)), "extras are 1; the blocks are 2"),
        (replace(STORED, extras=(b"x", "y")), "extras has an entry that is neither bytes nor None"),
        (replace(STORED, group=-1), "group is -1; it must be 0 to 2147483647"),
        (replace(STORED, window=1 << 31), "window is 2147483648; it must be 0 to 2147483647"),
        (Removed((1,), tier="gpu"), "tier is 'gpu'"),  # type: ignore[arg-type]
        (Removed((1,), group=1 << 31), "group is 2147483648"),
        (Moved(-1, Tier.GPU, Tier.CPU), "hash holds a number"),
        (Moved(1, "gpu", Tier.CPU), "source is 'gpu'"),  # type: ignore[arg-type]
        (SAID, "kind is BlockStored; it must be Stored, Removed, Moved or Cleared"),
    ],
)
def test_a_value_that_could_not_be_applied_is_refused_by_name(event: Event, problem: str) -> None:
    with pytest.raises(MalformedEventError, match=rf"events\[1\]\.{problem}"):
        check_events([Cleared(), event])


def test_a_tier_or_token_that_does_not_exist_is_refused_at_once() -> None:
    with pytest.raises(
        ValueError, match="tier is 'vram'; it must be one of gpu, cpu, disk, remote"
    ):
        Stored.of([1], [1], block_size=1, tier="vram")
    with pytest.raises(ValueError, match="target is 'x'"):
        Moved.of(1, source="gpu", target="x")
    with pytest.raises(ValueError, match="a token id must be an unsigned 32-bit integer"):
        Stored.of([1], [-1], block_size=1)
