"""Any bytes of a client come to nothing but the end of its connection: `make fuzz` tries far more."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.http2_input import PREFACED, RAW, SEEDS, attack
from tests.h2grpc.served import MISSING

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)


@pytest.mark.parametrize("seed", range(len(SEEDS)))
def test_each_seed_of_the_fuzzer_is_survived(seed: int) -> None:
    attack(SEEDS[seed])


@given(st.binary(max_size=200))
def test_any_acts_of_a_client_are_survived(data: bytes) -> None:
    attack(bytes([PREFACED]) + data)


@given(st.sampled_from([RAW, RAW | PREFACED]), st.binary(max_size=300))
def test_any_bytes_of_a_client_are_survived(kind: int, data: bytes) -> None:
    attack(bytes([kind]) + data)


@given(st.sampled_from(SEEDS), st.lists(st.tuples(st.integers(1, 400), st.binary(max_size=5))))
def test_changed_bytes_of_a_client_are_survived(
    seed: bytes, changes: list[tuple[int, bytes]]
) -> None:
    for at, new in changes:
        seed = seed[:at] + new + seed[at + len(new) :]
    attack(seed)
