"""The plain prompt that is cut out of a request is the one that protobuf reads."""

from hypothesis import example, given
from hypothesis import strategies as st

from router.pb.warmpath.wire.v1 import score_request_pb2 as wire
from router.prompt.plain import MOST_REST, PlainPrompt, cut_prompt

RESTS = st.builds(
    wire.ScoreRequest,
    pods=st.lists(st.text(max_size=5), max_size=3),
    request_id=st.integers(0, (1 << 64) - 1),
    explain=st.booleans(),
)
PROMPTS = st.builds(
    wire.Prompt,
    model=st.text(max_size=5),
    token_ids_packed=st.one_of(st.binary(max_size=300), st.just(bytes(40_000))),
    lora=st.sampled_from(["", "", "x"]),
    text=st.sampled_from([None, None, "x"]),
)


@given(PROMPTS, RESTS)
def test_a_plain_prompt_is_cut_out_and_no_other(
    prompt: wire.Prompt, rest: wire.ScoreRequest
) -> None:
    whole = wire.ScoreRequest(prompt=prompt)
    whole.MergeFrom(rest)
    found = cut_prompt(whole.SerializeToString())
    is_plain = prompt.model and not prompt.lora and not prompt.HasField("text")
    assert (found is not None) == bool(is_plain)
    if found is not None:
        assert found[0] == PlainPrompt(prompt.model, prompt.token_ids_packed)
        assert wire.ScoreRequest.FromString(found[1]) == rest


@given(
    st.lists(
        st.one_of(
            st.sampled_from([b"\x0a", b"\x2a", b"\x0a\x05\x0a\x01m\x2a\x00", b"\xff", b"\x80\x01"]),
            st.binary(max_size=4),
        ),
        max_size=8,
    ).map(b"".join)
)
@example(b"\x0a\x05\x0a\x01m\x2a\x00")
@example(b"\x0a\x05\x0a\x01\xff\x2a\x00")
@example(b"\x0a\x05\x0a\x01m\x2a\x00" * 2)
def test_what_is_cut_out_of_any_bytes_is_what_protobuf_reads(raw: bytes) -> None:
    found = cut_prompt(raw)
    if found is None:
        return
    prompt, rest = found
    assert rest == raw[len(raw) - len(rest) :]
    read = wire.ScoreRequest.FromString(raw[: len(raw) - len(rest)]).prompt
    assert read == wire.Prompt(model=prompt.model, token_ids_packed=prompt.ids)


def test_a_long_rest_is_left_to_protobuf() -> None:
    prompt = wire.Prompt(model="m", token_ids_packed=bytes(4))
    for size in (MOST_REST, MOST_REST + 1):
        raw = wire.ScoreRequest(prompt=prompt).SerializeToString() + bytes(size)
        assert (cut_prompt(raw) is None) == (size > MOST_REST)
