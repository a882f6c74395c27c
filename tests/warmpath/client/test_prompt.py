"""A prompt as a caller gives it."""

import doctest

import pytest

from warmpath.client import calls
from warmpath.client.calls import Prompt, prompt_of
from warmpath.indexer.keys.key import pack_tokens
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb


def test_the_examples_of_the_docstrings_are_true() -> None:
    assert not doctest.testmod(calls).failed


def test_ids_and_texts_alone_are_prompts() -> None:
    assert prompt_of([1, 2]) == Prompt([1, 2])
    assert prompt_of(b"\1\0\0\0").message("m").token_ids_packed == b"\1\0\0\0"
    assert prompt_of("a text") == Prompt(text="a text")
    assert prompt_of(Prompt(text="a")) == Prompt(text="a")


def test_the_clients_model_is_that_of_ids_and_texts_and_a_body_names_its_own() -> None:
    packed = pack_tokens([1])
    assert Prompt([1]).message("m") == pb.Prompt(model="m", token_ids_packed=packed)
    assert Prompt([1], model="o").message("m") == pb.Prompt(model="o", token_ids_packed=packed)
    assert Prompt(chat_body=b"{}").message("m") == pb.Prompt(chat_body=b"{}")
    body = Prompt(completions_body=b"{}", model="o").message("m")
    assert body == pb.Prompt(model="o", completions_body=b"{}")


@pytest.mark.parametrize(
    ("fields", "error", "problem"),
    [
        ({}, ValueError, "a prompt has no content; give one of tokens, text, chat_body, complet"),
        ({"text": "", "tokens": []}, ValueError, "a prompt has tokens and text; give one of"),
        ({"tokens": "text"}, TypeError, "tokens is of type str; give a text as `text`"),
        ({"text": b"text"}, TypeError, "text is of type bytes, not str"),
        ({"chat_body": "{}"}, TypeError, "chat_body is of type str, not bytes"),
    ],
)
def test_a_prompt_has_one_content_of_its_type(
    fields: dict[str, object], error: type[Exception], problem: str
) -> None:
    with pytest.raises(error, match=problem):
        Prompt(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tokens", "problem"),
    [
        ([1 << 32], "unsigned 32-bit"),
        (["a"], "unsigned 32-bit"),
        (b"12345", "5 bytes; token ids take 4"),
    ],
)
def test_what_is_no_token_id_is_refused(tokens: list[int], problem: str) -> None:
    with pytest.raises(ValueError, match=f"tokens: .*{problem}"):
        Prompt(tokens).packed_tokens()


def test_no_log_or_traceback_shows_a_prompts_content() -> None:
    for one in (Prompt([4711]), Prompt(text="4711"), Prompt(chat_body=b"4711")):
        assert "4711" not in repr(one)
