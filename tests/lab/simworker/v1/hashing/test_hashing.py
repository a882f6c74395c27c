"""The hash algorithms, byte-equal to those of real vLLM, and the pickles and CBOR that they cover."""

import hashlib
import json
import pickle
import random
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_128_digest

from tests.recordings import VLLM_HASHES
from warmpath.lab.simworker.v1.hashing import cbor
from warmpath.lab.simworker.v1.hashing.algorithms import (
    get_hash_fn_by_name,
    sha256,
    sha256_cbor,
    xxhash,
    xxhash_cbor,
)
from warmpath.lab.simworker.v1.hashing.block_hash import (
    DEFAULT_NONE_HASH_SEED,
    NONE_HASH,
    get_request_block_hasher,
    maybe_convert_block_hash,
    none_hash,
)
from warmpath.lab.simworker.v1.hashing.block_hash_view import BlockHashListWithBlockSize
from warmpath.lab.simworker.v1.hashing.extra_keys import (
    LoRARequest,
    generate_block_hash_extra_keys,
    to_event_extra_keys,
)
from warmpath.lab.simworker.v1.hashing.pickled import Value, encode
from warmpath.lab.simworker.v1.requests.request import Request, SamplingParams

RECORDED = json.loads(VLLM_HASHES.read_text())
VECTORS = RECORDED["vectors"]
CURRENT = [vector for vector in VECTORS if vector["version"] == "0.32.0"]
OF_TOKENS = [one for one in CURRENT if not (one["mm_features"] or one["prompt_embeds"])]
"""Those of requests that simulated engines take: without images, and with tokens as prompts."""
OLDER = [
    vector for vector in VECTORS if vector["version"] != "0.32.0" and vector["block_hashes_hex"]
]


def test_only_the_chains_of_integers_are_left_out() -> None:
    """0.10.0 and 0.10.1 had one algorithm over 64-bit integers, which no later version has."""
    left_out = [vector for vector in VECTORS if vector not in CURRENT and vector not in OLDER]
    assert {vector["algo"] for vector in left_out} == {"sha256_cbor_64bit"}
    assert {vector["version"] for vector in left_out} == {"0.10.0", "0.10.1"}
    assert (len(CURRENT), len(OLDER), len(left_out)) == (68, 8, 2)


def plain(value: Any) -> Any:
    """Return a vector's value with its bytes as bytes and its arrays as tuples."""
    if isinstance(value, dict):
        return bytes.fromhex(value["$bytes"])
    return tuple(map(plain, value)) if isinstance(value, list) else value


def request_of(vector: dict[str, Any]) -> Request:
    lora = vector["lora"]
    algorithm = get_hash_fn_by_name(vector["algo"])
    root = none_hash(algorithm, vector["seed_used"])
    return Request(
        "r",
        vector["token_ids"],
        SamplingParams(),
        lora_request=LoRARequest(lora["name"], lora["int_id"], lora["path"]) if lora else None,
        cache_salt=vector["cache_salt"],
        block_hasher=get_request_block_hasher(vector["hash_block_size"], algorithm, root),
    )


@pytest.mark.parametrize("vector", OF_TOKENS, ids=lambda vector: vector["name"])
def test_a_requests_hashes_are_the_engines_own(vector: dict[str, Any]) -> None:
    algorithm = get_hash_fn_by_name(vector["algo"])
    assert none_hash(algorithm, vector["seed_used"]).hex() == vector["none_hash_hex"]
    request = request_of(vector)
    assert [digest.hex() for digest in request.block_hashes] == vector["block_hashes_hex"]
    low = [maybe_convert_block_hash(digest) for digest in request.block_hashes]
    assert low == vector["block_hashes_low64"]
    for size, expected in (vector.get("views") or {}).items():
        seen = BlockHashListWithBlockSize(
            request.block_hashes, vector["hash_block_size"], int(size)
        )
        assert [digest.hex() for digest in seen] == expected["block_hashes_hex"]


@pytest.mark.parametrize("vector", OF_TOKENS, ids=lambda vector: vector["name"])
def test_a_blocks_extra_keys_are_the_engines_own(vector: dict[str, Any]) -> None:
    request = request_of(vector)
    size = vector["hash_block_size"]
    starts = range(0, len(request.block_hashes) * size, size)
    keys = [generate_block_hash_extra_keys(request, start) for start in starts]
    assert keys == list(map(plain, vector["extra_keys_hashed"]))
    if vector["extra_keys_in_event"] is not None:
        assert to_event_extra_keys(keys) == list(map(plain, vector["extra_keys_in_event"]))


@pytest.mark.parametrize("vector", CURRENT, ids=lambda vector: vector["name"])
def test_what_is_hashed_is_byte_for_byte_what_the_engine_hashes(vector: dict[str, Any]) -> None:
    """The digest of the recorded preimage is the block's hash, and CBOR of the parts is it."""
    size = vector["hash_block_size"]
    parent = bytes.fromhex(vector["none_hash_hex"])
    keys = list(map(plain, vector["extra_keys_hashed"]))
    hashes = map(bytes.fromhex, vector["block_hashes_hex"])
    for at, (preimage_hex, digest) in enumerate(
        zip(vector["preimage_hex_first_blocks"], hashes, strict=False)
    ):
        preimage = bytes.fromhex(preimage_hex)
        if vector["algo"].endswith("_cbor"):
            tokens = tuple(vector["token_ids"][at * size : (at + 1) * size])
            assert cbor.encode((parent, tokens, keys[at])) == preimage
        digests = (hashlib.sha256(preimage).digest(), xxh3_128_digest(preimage))
        assert digest == digests[vector["algo"].startswith("xxhash")]
        parent = digest


@pytest.mark.parametrize("vector", OLDER, ids=lambda vector: vector["name"])
def test_older_chains_differ_in_their_extra_keys_only(vector: dict[str, Any]) -> None:
    algorithm = get_hash_fn_by_name(vector["algo"])
    parent = bytes.fromhex(vector["none_hash_hex"])
    size = vector["hash_block_size"]
    for at, digest in enumerate(vector["block_hashes_hex"]):
        tokens = vector["token_ids"][at * size : (at + 1) * size]
        keys = plain(vector["extra_keys_hashed"][at])
        parent = algorithm((parent, tuple(tokens), keys))
        assert parent.hex() == digest


def test_pickles_know_a_string_they_have_seen_by_identity() -> None:
    pitfall = RECORDED["pickle_identity_pitfall"]
    root = none_hash(sha256, pitfall["seed"])
    name = "same-name"
    twin = str(b"same-name", "ascii")
    assert name == twin
    assert name is not twin
    same = sha256((root, (1, 2), (("lora", name, name),)))
    apart = sha256((root, (1, 2), (("lora", name, twin),)))
    assert same.hex() == pitfall["same_object"]
    assert apart.hex() == pitfall["equal_but_distinct_objects"]


def test_a_chain_begins_at_the_default_seed() -> None:
    assert none_hash() == NONE_HASH == sha256(DEFAULT_NONE_HASH_SEED)


def test_unknown_algorithms_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="hash_fn_name: 'md5' is none of sha256, sha256_cbor"):
        get_hash_fn_by_name("md5")


INTEGERS = st.integers(-(2**64), 2**64 - 1)
VALUES = st.recursive(
    INTEGERS | st.binary(max_size=300) | st.text(max_size=300) | st.none(),
    lambda inner: st.lists(inner, max_size=30).map(tuple),
    max_leaves=40,
)


@given(VALUES)
def test_any_value_is_encoded_as_canonical_cbor(value: Any) -> None:
    assert cbor.encode(value) == cbor2.dumps(value, canonical=True)


@given(
    st.binary(min_size=16, max_size=32),
    st.lists(st.integers(0, 2**32 - 1), max_size=40),
    st.none() | st.just((("cache_salt", "s"),)),
)
def test_the_algorithms_are_digests_of_two_serialisations(
    parent: bytes, tokens: list[int], keys: Any
) -> None:
    whole = (parent, tuple(tokens), keys)
    pickled, encoded = pickle.dumps(whole, protocol=5), cbor2.dumps(whole, canonical=True)
    assert sha256(whole) == hashlib.sha256(pickled).digest()
    assert sha256_cbor(whole) == hashlib.sha256(encoded).digest()
    assert xxhash(whole) == xxh3_128_digest(pickled)
    assert xxhash_cbor(whole) == xxh3_128_digest(encoded)


@pytest.mark.parametrize("value", [1.5, {"a": 1}, [object()]])
def test_what_no_hash_is_made_of_has_no_encoding(value: Any) -> None:
    with pytest.raises(TypeError, match="no CBOR for"):
        cbor.encode(value)


@pytest.mark.parametrize("value", [2**64, -(2**64) - 1])
def test_integers_beyond_64_bits_have_no_encoding(value: int) -> None:
    with pytest.raises(ValueError, match="does not fit 64 bits"):
        cbor.encode(value)


PICKLED_INTEGERS = st.one_of(
    st.integers(0, 300),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.builds(
        lambda shift, sign, off: min(max(sign * (1 << shift) + off, -(1 << 63)), (1 << 64) - 1),
        st.integers(0, 63),
        st.sampled_from([-1, 1]),
        st.integers(-1, 1),
    ),
)
PICKLED: st.SearchStrategy[Value] = st.recursive(
    st.none() | PICKLED_INTEGERS | st.binary(max_size=300) | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=6).map(tuple),
)


@given(value=PICKLED)
def test_every_value_is_as_python_writes_it(value: Value) -> None:
    assert encode(value) == pickle.dumps(value, 5)


@given(
    parts=st.lists(PICKLED, min_size=1, max_size=4), picks=st.lists(st.integers(0, 3), max_size=8)
)
def test_objects_that_come_again_are_references(parts: list[Value], picks: list[int]) -> None:
    value = tuple(parts[pick % len(parts)] for pick in picks)
    assert encode((value, value)) == pickle.dumps((value, value), 5)


@pytest.mark.deep
@pytest.mark.parametrize("length", [16, 13_106, 21_800, 21_845, 21_846, 32_768, 70_000])
@pytest.mark.parametrize("most", [1 << 8, 1 << 16, 1 << 20])
def test_frames_end_where_python_ends_them(length: int, most: int) -> None:
    tokens = tuple(random.Random(length).randrange(most) for _ in range(length))
    value = (b"p" * 32, tokens, (("lora", "a", "b"),))
    assert encode(value) == pickle.dumps(value, 5)


def test_more_than_256_objects_are_referred_to() -> None:
    texts = [f"text {number}" for number in range(300)]
    value = (*texts, *texts)
    assert encode(value) == pickle.dumps(value, 5)


@pytest.mark.parametrize("value", [1.5, {}, [1]])
def test_other_types_are_refused(value: object) -> None:
    with pytest.raises(TypeError, match="no pickle for"):
        encode((1, value))  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [1 << 64, -(1 << 63) - 1, "x" * (1 << 16)])
def test_what_is_out_of_range_is_refused(value: Value) -> None:
    with pytest.raises(ValueError, match=r"64 bits|are known"):
        encode(value)
