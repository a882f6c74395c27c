"""The plain prompt that is cut out of a request is the one that protobuf reads; what is kept of prompts."""

from hypothesis import example, given
from hypothesis import strategies as st

from warmpath.indexer.keys.key import pack_tokens, unpack_tokens
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.wire.v1 import score_request_pb2 as wire
from warmpath.router.prompt import token_prompt
from warmpath.router.prompt.plain import MOST_REST, PlainPrompt, cut_prompt, highest_token
from warmpath.router.prompt.token_prompt import TokenPrompt

RESTS = st.builds(
    wire.ScoreRequest,
    pods=st.lists(st.text(max_size=5), max_size=3),
    request_id=st.integers(0, (1 << 64) - 1),
    explain=st.booleans(),
)
PROMPTS = st.builds(
    pb.Prompt,
    model=st.text(max_size=5),
    token_ids_packed=st.one_of(st.none(), st.binary(max_size=300), st.just(bytes(40_000))),
    token_ids=st.one_of(
        st.none(),
        st.builds(
            pb.TokenIds,
            ids=st.one_of(st.lists(st.integers(0, (1 << 32) - 1)), st.just(range(20_000))),
        ),
    ),
    lora=st.sampled_from(["", "", "x"]),
    text=st.sampled_from([None, None, "x"]),
)


@given(PROMPTS, RESTS)
def test_a_plain_prompt_is_cut_out_and_no_other(prompt: pb.Prompt, rest: wire.ScoreRequest) -> None:
    whole = pb.ScoreRequest(prompt=prompt).SerializeToString() + rest.SerializeToString()
    found = cut_prompt(whole)
    ids = prompt.token_ids.ids
    has_one_form = prompt.HasField("token_ids_packed") is not bool(ids)
    is_plain = prompt.model and not prompt.lora and not prompt.HasField("text") and has_one_form
    # An empty list leaves a trace in the bytes.
    is_plain = is_plain and prompt.HasField("token_ids") is bool(ids)
    assert (found is not None) == bool(is_plain)
    if found is not None:
        packed = pack_tokens(ids) if ids else prompt.token_ids_packed
        assert found[0] == PlainPrompt(prompt.model, packed, bool(ids))
        assert wire.ScoreRequest.FromString(found[1]) == rest


PACKED, LISTED = b"\x0a\x05\x0a\x01m\x2a\x00", b"\x0a\x08\x0a\x01m\x32\x03\x0a\x01"
"""The beginnings of requests with ids in either form."""


@given(
    st.lists(
        st.one_of(
            st.sampled_from([b"\x0a", b"\x2a", b"\x32", b"\xff", b"\x80\x01", PACKED, LISTED]),
            st.binary(max_size=4),
        ),
        max_size=8,
    ).map(b"".join)
)
@example(PACKED)
@example(b"\x0a\x05\x0a\x01\xff\x2a\x00")
@example(PACKED * 2)
@example(LISTED + b"\x07")
@example(b"\x0a\x07\x0a\x01m\x32\x02\x0a\x00")
@example(b"\x0a\x0d\x0a\x01m\x32\x08\x0a\x06\xff\xff\xff\xff\xff\x01")
def test_what_is_cut_out_of_any_bytes_is_what_protobuf_reads(raw: bytes) -> None:
    found = cut_prompt(raw)
    if found is None:
        return
    prompt, rest = found
    assert rest == raw[len(raw) - len(rest) :]
    read = pb.ScoreRequest.FromString(raw[: len(raw) - len(rest)]).prompt
    if prompt.is_listed:
        assert read == pb.Prompt(
            model=prompt.model, token_ids=pb.TokenIds(ids=unpack_tokens(prompt.ids))
        )
    else:
        assert read == pb.Prompt(model=prompt.model, token_ids_packed=prompt.ids)


def test_a_long_rest_is_left_to_protobuf() -> None:
    prompt = wire.Prompt(model="m", token_ids_packed=bytes(4))
    for size in (MOST_REST, MOST_REST + 1):
        raw = wire.ScoreRequest(prompt=prompt).SerializeToString() + bytes(size)
        assert (cut_prompt(raw) is None) == (size > MOST_REST)


@given(st.lists(st.integers(0, (1 << 32) - 1), min_size=1, max_size=70))
def test_the_highest_id_is_found(ids: list[int]) -> None:
    assert highest_token(pack_tokens(ids)) == max(ids)


def test_nothing_is_kept_of_what_sets_one_request_apart() -> None:
    ids = pack_tokens(range(64))
    TokenPrompt("m", ids).chain(16, "")
    before = token_prompt._root.cache_info().currsize
    roots = {
        TokenPrompt("m", ids, cache_salt=str(number)).chain(16, "").root for number in range(100)
    } | {TokenPrompt("m", ids, extra_key=str(number)).chain(16, "").root for number in range(100)}
    assert len(roots) == 200
    assert token_prompt._root.cache_info().currsize == before
