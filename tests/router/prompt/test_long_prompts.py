"""Whoever sends a prompt with very much in it lets others have their turn while it is read."""

import json
from typing import Any

import pytest

from tests.router.prompt.turns import turns_and_result
from warmpath.indexer.keys.key import pack_tokens
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.prompt.bad_request import BadRequestError
from warmpath.router.prompt.bodies import fields as body_fields
from warmpath.router.prompt.limits import PromptLimits
from warmpath.router.prompt.models import Model, ModelTable
from warmpath.router.prompt.parse import LONG, PromptParser

BYTES = 5 * LONG


@pytest.fixture
def parser() -> PromptParser:
    models = ModelTable()
    models.add(Model("m"), [], [])
    return PromptParser(models, PromptLimits(BYTES, LONG), lambda model: model.vocab_size)


def prompt_of(**fields: Any) -> pb.Prompt:
    return pb.Prompt(model="m", **fields)


def test_a_prompt_of_usual_length_is_read_in_one_step(parser: PromptParser) -> None:
    for prompt in (
        prompt_of(token_ids_packed=pack_tokens([1] * 2000)),
        prompt_of(text="中" * 2000),
    ):
        assert turns_and_result(parser.parse(prompt))[0] == 0


def test_who_sends_many_items_gives_turns(parser: PromptParser) -> None:
    ids = pack_tokens([1] * 2000)
    items = [pb.MultimodalItem(hash=f"h{at}", offset=2 * at, length=2) for at in range(1000)]
    turns, prompt = turns_and_result(
        parser.parse(prompt_of(token_ids_packed=ids, multimodal=items))
    )
    assert [(one.hash, one.offset, one.length) for one in prompt.items] == [
        (f"h{at}", 2 * at, 2) for at in range(1000)
    ]
    assert turns >= len(items) // 512


@pytest.mark.parametrize("character", ["a", "é", "中", "😀"])
def test_who_sends_a_long_text_gives_turns(parser: PromptParser, character: str) -> None:
    text = character * (LONG + 1)
    turns, prompt = turns_and_result(parser.parse(prompt_of(text=text)))
    assert prompt.content.text == text
    assert turns >= 1


def test_a_long_text_is_encoded_in_turns_where_its_bytes_may_be_too_many(
    parser: PromptParser,
) -> None:
    text = "中" * (BYTES // 3)
    assert turns_and_result(parser.parse(prompt_of(text=text)))[0] > len(text) // LONG
    with pytest.raises(BadRequestError) as refused:
        turns_and_result(parser.parse(prompt_of(text=text + "aé")))
    size = len((text + "aé").encode())
    assert (
        str(refused.value) == f"prompt.text: has {size} bytes; limits.max-prompt-bytes is {BYTES}"
    )


def test_a_text_of_more_characters_than_bytes_may_be_is_told_its_bytes(
    parser: PromptParser,
) -> None:
    with pytest.raises(BadRequestError, match=f"has {2 * (BYTES + 1)} bytes"):
        turns_and_result(parser.parse(prompt_of(text="é" * (BYTES + 1))))


def test_others_have_their_turn_before_long_ids_are_matched(parser: PromptParser) -> None:
    ids = [1] * (LONG // 4 + 1)
    for form in ({"token_ids_packed": pack_tokens(ids)}, {"token_ids": pb.TokenIds(ids=ids)}):
        turns, prompt = turns_and_result(parser.parse(prompt_of(**form)))
        assert (turns, prompt.content) == (1, pack_tokens(ids))


def test_who_sends_a_large_body_gives_turns(parser: PromptParser) -> None:
    messages = [{"role": "user", "content": "x" * 100}] * 5000
    raw = json.dumps({"messages": messages}).encode()
    turns, prompt = turns_and_result(parser.parse(prompt_of(chat_body=raw)))
    assert prompt.content.chat.messages == messages
    assert turns > 2 * len(raw) / body_fields.SLICE_BYTES
