"""Block hashes, byte-equal to those of real vLLM."""

import hashlib
import json
from pathlib import Path
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simworker.v1.block_hash import Extra, block_hash, none_hash, wire_hash

SHARED = Path(__file__).resolve().parents[3].parent / "shared"
VECTORS = [
    vector
    for vector in json.loads((SHARED / "vectors" / "vllm-hashes.json").read_text())["vectors"]
    if vector["algo"] == "sha256_cbor" and vector.get("block_hashes_hex")
]


def tagged(vector: dict[str, Any]) -> list[Extra] | None:
    """Return each block's extras in our form; None where the vector has others."""
    extras = []
    for block in vector.get("extra_keys_hashed") or []:
        items = []
        for item in block or ():
            if not isinstance(item, list) or not all(isinstance(part, str) for part in item):
                return None
            items.append(tuple(item))
        extras.append(tuple(items))
    return extras


SUPPORTED = [vector for vector in VECTORS if tagged(vector) is not None]


def test_there_are_vectors() -> None:
    assert len(SUPPORTED) >= 5


@pytest.mark.parametrize("vector", SUPPORTED, ids=lambda vector: vector.get("name", "plain"))
def test_the_chain_is_the_engines_own(vector: dict[str, Any]) -> None:
    seed = vector["seed_used"]
    if isinstance(seed, str):
        assert none_hash(seed).hex() == vector["none_hash_hex"]
    parent = bytes.fromhex(vector["none_hash_hex"])
    size = vector["hash_block_size"]
    extras = tagged(vector) or []
    for number, (digest, low) in enumerate(
        zip(vector["block_hashes_hex"], vector["block_hashes_low64"], strict=True)
    ):
        tokens = vector["token_ids"][number * size : (number + 1) * size]
        extra = extras[number] if number < len(extras) else ()
        parent = block_hash(parent, tokens, extra)
        assert parent.hex() == digest
        assert wire_hash(parent) == low


EXTRAS = st.lists(st.lists(st.text(max_size=40), min_size=1, max_size=3).map(tuple), max_size=3)


@given(
    st.binary(min_size=32, max_size=32),
    st.lists(st.integers(0, 2**32 - 1), max_size=40),
    EXTRAS.map(tuple),
)
def test_the_preimage_is_canonical_cbor(parent: bytes, tokens: list[int], extra: Extra) -> None:
    preimage = cbor2.dumps((parent, tuple(tokens), extra or None), canonical=True)
    assert block_hash(parent, tokens, extra) == hashlib.sha256(preimage).digest()
