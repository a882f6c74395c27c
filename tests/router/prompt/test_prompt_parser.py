"""A request's prompt is one value, whatever form and schema it has; wrong fields are named.

Whoever sends a prompt with very much in it lets others have their turn while it is read.
"""

import json
from typing import Any

import pytest

from tests.router.prompt.turns import turns_and_result
from warmpath.indexer.keys.key import Item, pack_tokens
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.wire.v1 import score_request_pb2 as wire
from warmpath.router.prompt.bodies import fields as body_fields
from warmpath.router.prompt.bodies.openai import ChatBody, Text
from warmpath.router.prompt.limits import BadRequestError, PromptLimits
from warmpath.router.prompt.models import Model, ModelTable, UnknownModelError
from warmpath.router.prompt.parse import LONG, CheckedPrompt, PromptParser, gives_ids
from warmpath.router.prompt.truncate import Truncation

MODEL = Model("m", vocab_size=100)
IDS = [1, 2, 3, 4]
PACKED = pack_tokens(IDS)
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def parser_of(max_prompt_bytes: int, max_prompt_tokens: int) -> PromptParser:
    models = ModelTable()
    models.add(MODEL, ["alias"], ["tuned"])
    limits = PromptLimits(max_prompt_bytes, max_prompt_tokens)
    return PromptParser(models, limits, lambda model: model.vocab_size)


@pytest.fixture
def parser() -> PromptParser:
    return parser_of(2000, 10)


def both(message: pb.Prompt) -> list[pb.Prompt | wire.Prompt]:
    return [message, wire.Prompt.FromString(message.SerializeToString())]


FORMS: list[tuple[dict[str, Any], str, bytes | Text]] = [
    ({"text": "hi"}, "text", Text("hi", add_special_tokens=True)),
    ({"token_ids_packed": PACKED}, "token_ids_packed", PACKED),
    ({"token_ids": pb.TokenIds(ids=IDS)}, "token_ids.ids", PACKED),
    ({"completions_body": body(prompt="hi", add_special_tokens=False)}, "completions_body.prompt", Text("hi", add_special_tokens=False)),
    ({"completions_body": body(prompt=IDS)}, "completions_body.prompt", PACKED),
]  # fmt: skip


@pytest.mark.parametrize(("form", "field", "content"), FORMS)
async def test_every_form_is_one_value_in_both_schemas(
    parser: PromptParser, form: dict[str, Any], field: str, content: bytes | Text
) -> None:
    items = [pb.MultimodalItem(hash="h", offset=1, length=2)]
    message = pb.Prompt(
        model="alias", lora="a", cache_salt="s", extra_key="e", multimodal=items, **form
    )
    for schema in both(message):
        assert gives_ids(schema) == field.startswith("token_ids")
        prompt = await parser.parse(schema)
        assert prompt.form == ("ids" if content == PACKED else "text")
        assert prompt == CheckedPrompt(
            model=MODEL,
            adapter="a",
            field=f"prompt.{field}",
            content=content,
            cache_salt="s",
            extra_key="e",
            items=(Item("h", 1, 2),),
            lora_path="",
            reads_cache=True,
            truncation=None,
        )


async def test_a_body_says_whatever_the_prompt_leaves_unsaid(parser: PromptParser) -> None:
    raw = body(
        **CHAT,
        model="tuned",
        cache_salt="s",
        extra_key=["e"],
        lora_path="path",
        prompt_logprobs=1,
        truncate_prompt_tokens=5,
        truncation_side="right",
    )
    for schema in both(pb.Prompt(chat_body=raw)):
        prompt = await parser.parse(schema)
        assert isinstance(prompt.content, ChatBody)
        assert prompt.form == "chat"
        assert prompt.content.chat.messages == CHAT["messages"]
        assert (prompt.model, prompt.adapter, prompt.field) == (MODEL, "tuned", "prompt.chat_body")
        assert (prompt.cache_salt, prompt.extra_key, prompt.lora_path) == ("s", "e", "path")
        assert prompt.truncation == Truncation(5, "right")
        assert not prompt.reads_cache


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({}, "prompt: is missing; give one of text, chat_body, completions_body, token_ids_packed, token_ids"),
        ({"text": "a", "token_ids": pb.TokenIds()}, "prompt: is given as text and token_ids; give one of them"),
        ({"text": "é" * 1001}, "prompt.text: has 2002 bytes; limits.max-prompt-bytes is 2000"),
        ({"token_ids": pb.TokenIds(ids=[1] * 11)}, "prompt.token_ids.ids: has 11 tokens; limits.max-prompt-tokens is 10"),
        ({"completions_body": body(prompt=[100])}, "prompt.completions_body.prompt: holds token id 100; those of 'm' are 0 to 99"),
        ({"token_ids_packed": b"12345"}, "prompt.token_ids_packed: has 5 bytes; packed token ids take 4 each"),
        ({"completions_body": body(prompt=[])}, "prompt.completions_body.prompt: is empty; at least one token is needed"),
        ({"model": "tuned", "lora": "x", "text": "a"}, "prompt.lora: is 'x', but 'tuned' is an adapter"),
        ({"cache_salt": "a", "completions_body": body(prompt="hi", cache_salt="b")}, "prompt.cache_salt: differs from the body's cache_salt"),
        ({"completions_body": body(prompt="hi", lora_path="p" * 1025, model="m")}, "prompt.lora_path: is longer than 1024 bytes"),
        (
            {"completions_body": body(prompt="hi", truncate_prompt_tokens=3), "multimodal": [pb.MultimodalItem()]},
            "prompt.completions_body.truncate_prompt_tokens: is not supported beside multimodal items",
        ),
        (
            {"token_ids_packed": PACKED, "multimodal": [pb.MultimodalItem(hash="h", offset=3, length=2)]},
            "prompt.multimodal[0]: ends at token 5; the prompt has 4 tokens",
        ),
    ],
)  # fmt: skip
async def test_a_wrong_field_is_named_with_its_limit_in_both_schemas(
    parser: PromptParser, wrong: dict[str, Any], message: str
) -> None:
    for schema in both(pb.Prompt(**({"model": "m"} | wrong))):
        with pytest.raises(BadRequestError) as refused:
            await parser.parse(schema)
        assert str(refused.value) == message
        assert refused.value.field == message.partition(":")[0]


async def test_a_prompt_in_no_form_is_one_without_tokens_where_it_may_be(
    parser: PromptParser,
) -> None:
    message = pb.Prompt(model="tuned", cache_salt="s", extra_key="e")
    for schema in both(message):
        parsed = await parser.parse(schema, may_lack=True)
        assert (parsed.model, parsed.adapter, parsed.content) == (MODEL, "tuned", b"")
        assert (parsed.cache_salt, parsed.extra_key, parsed.form) == ("s", "e", "ids")
        with pytest.raises(BadRequestError, match="prompt: is missing; give one of"):
            await parser.parse(schema)


async def test_a_prompt_in_no_form_need_not_name_a_model(parser: PromptParser) -> None:
    parsed = await parser.parse(pb.Prompt(lora="a"), may_lack=True)
    assert (parsed.model, parsed.adapter, parsed.content) == (Model(""), "a", b"")
    with pytest.raises(UnknownModelError):
        await parser.parse(pb.Prompt(model="nobody"), may_lack=True)


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (pb.Prompt(text="hi"), "prompt.model"),
        (pb.Prompt(model="m", token_ids_packed=b""), "prompt.token_ids_packed"),
        (pb.Prompt(model="m", token_ids=pb.TokenIds()), "prompt.token_ids.ids"),
        (pb.Prompt(model="m", text="hi", token_ids_packed=PACKED), "prompt"),
        (pb.Prompt(model="m", multimodal=[pb.MultimodalItem(hash="h", length=1)]), "prompt.multimodal"),
        (pb.Prompt(model="m" * 1025), "prompt.model"),
        (pb.Prompt(lora="a" * 1025), "prompt.lora"),
        (pb.Prompt(cache_salt="s" * 1025), "prompt.cache_salt"),
    ],
)  # fmt: skip
async def test_where_a_prompt_may_lack_everything_else_is_checked_as_ever(
    parser: PromptParser, message: pb.Prompt, field: str
) -> None:
    with pytest.raises(BadRequestError) as raised:
        await parser.parse(message, may_lack=True)
    assert raised.value.field == field


BYTES = 5 * LONG


@pytest.fixture
def roomy() -> PromptParser:
    return parser_of(BYTES, LONG)


def prompt_of(**fields: Any) -> pb.Prompt:
    return pb.Prompt(model="m", **fields)


def test_a_prompt_of_usual_length_is_read_in_one_step(roomy: PromptParser) -> None:
    for prompt in (
        prompt_of(token_ids_packed=pack_tokens([1] * 2000)),
        prompt_of(text="中" * 2000),
    ):
        assert turns_and_result(roomy.parse(prompt))[0] == 0


def test_who_sends_many_items_gives_turns(roomy: PromptParser) -> None:
    ids = pack_tokens([1] * 2000)
    items = [pb.MultimodalItem(hash=f"h{at}", offset=2 * at, length=2) for at in range(1000)]
    turns, prompt = turns_and_result(roomy.parse(prompt_of(token_ids_packed=ids, multimodal=items)))
    assert [(one.hash, one.offset, one.length) for one in prompt.items] == [
        (f"h{at}", 2 * at, 2) for at in range(1000)
    ]
    assert turns >= len(items) // 512


@pytest.mark.parametrize("character", ["a", "é", "中", "😀"])
def test_who_sends_a_long_text_gives_turns(roomy: PromptParser, character: str) -> None:
    text = character * (LONG + 1)
    turns, prompt = turns_and_result(roomy.parse(prompt_of(text=text)))
    assert prompt.content.text == text
    assert turns >= 1


def test_a_long_text_is_encoded_in_turns_where_its_bytes_may_be_too_many(
    roomy: PromptParser,
) -> None:
    text = "中" * (BYTES // 3)
    assert turns_and_result(roomy.parse(prompt_of(text=text)))[0] > len(text) // LONG
    with pytest.raises(BadRequestError) as refused:
        turns_and_result(roomy.parse(prompt_of(text=text + "aé")))
    size = len((text + "aé").encode())
    assert (
        str(refused.value) == f"prompt.text: has {size} bytes; limits.max-prompt-bytes is {BYTES}"
    )


def test_a_text_of_more_characters_than_bytes_may_be_is_told_its_bytes(roomy: PromptParser) -> None:
    with pytest.raises(BadRequestError, match=f"has {2 * (BYTES + 1)} bytes"):
        turns_and_result(roomy.parse(prompt_of(text="é" * (BYTES + 1))))


def test_others_have_their_turn_before_long_ids_are_matched(roomy: PromptParser) -> None:
    ids = [1] * (LONG // 4 + 1)
    for form in ({"token_ids_packed": pack_tokens(ids)}, {"token_ids": pb.TokenIds(ids=ids)}):
        turns, prompt = turns_and_result(roomy.parse(prompt_of(**form)))
        assert (turns, prompt.content) == (1, pack_tokens(ids))


def test_who_sends_a_large_body_gives_turns(roomy: PromptParser) -> None:
    messages = [{"role": "user", "content": "x" * 100}] * 5000
    raw = json.dumps({"messages": messages}).encode()
    turns, prompt = turns_and_result(roomy.parse(prompt_of(chat_body=raw)))
    assert prompt.content.chat.messages == messages
    assert turns > 2 * len(raw) / body_fields.SLICE_BYTES
