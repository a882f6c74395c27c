"""What is left of a prompt that the engine is to cut is what vLLM leaves of it."""

import json
import shutil
from pathlib import Path
from typing import Any

import grpc
import pytest
from tokenizers import Tokenizer, processors

from tests.router.service_stand import IDS, Stand, standing
from warmpath.indexer.keys.key import pack_tokens, unpack_tokens
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.prompt.bodies.openai import parse_completions
from warmpath.router.prompt.limits import BadRequestError

TEXT = "You are a patient assistant that explains how prefix caching works, step by step."


@pytest.fixture(params=["plain", "begin", "both"])
def special_folder(request: pytest.FixtureRequest, model_folder: Path, tmp_path: Path) -> Path:
    """Return the model's tokenizer with no special tokens, one before, or one on both sides."""
    tokenizer = Tokenizer.from_file(str(model_folder / "tokenizer.json"))
    if request.param != "plain":
        tokenizer.add_special_tokens(["<b>", "<e>"])
        known = [(name, tokenizer.token_to_id(name)) for name in ("<b>", "<e>")]
        single = "<b> $A" if request.param == "begin" else "<b> $A <e>"
        tokenizer.post_processor = processors.TemplateProcessing(
            single=single, special_tokens=known
        )
    folder = shutil.copytree(model_folder, tmp_path / "tokenizer")
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


async def scored(stand: Stand, body: dict[str, Any], form: str = "completions_body") -> list[int]:
    raw = json.dumps({"model": "demo"} | body).encode()
    prompt = pb.Prompt(**{form: raw})  # type: ignore[arg-type]
    answer = await stand.score(prompt, explain=True)
    ids = list(unpack_tokens(answer.explanation.token_ids_packed))
    assert answer.prompt_tokens == len(ids)
    return ids


async def test_a_text_is_cut_as_vllms_tokenizer_cuts_it(
    tmp_path: Path, special_folder: Path
) -> None:
    # vLLM loads tokenizers of generating models with truncation_side "left", and has them truncate.
    oracle = Tokenizer.from_file(str(special_folder / "tokenizer.json"))
    whole = oracle.encode(TEXT).ids
    around = len(whole) - len(oracle.encode(TEXT, add_special_tokens=False).ids)
    async with standing(tmp_path, special_folder) as stand:
        for tokens in (around + 1, around + 7, len(whole) - 1, len(whole), len(whole) + 1):
            body = {"prompt": TEXT, "truncate_prompt_tokens": tokens}
            oracle.enable_truncation(tokens, direction="left")
            assert await scored(stand, body) == oracle.encode(TEXT).ids
            # With a side the tokens of the whole text are cut, special ones and all.
            right = await scored(stand, body | {"truncation_side": "right"})
            assert right == whole[:tokens]
            left = await scored(stand, body | {"truncation_side": "left"})
            assert left == whole[-tokens:]
        if around:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await scored(stand, {"prompt": TEXT, "truncate_prompt_tokens": around})
            assert "prompt.completions_body.truncate_prompt_tokens" in str(error.value.details())
        # A chat's special tokens are its template's text.
        chat = {"messages": [{"role": "user", "content": TEXT}]}
        all_of_it = await scored(stand, chat, "chat_body")
        cut = await scored(stand, chat | {"truncate_prompt_tokens": 9}, "chat_body")
        assert cut == all_of_it[-9:]


async def test_token_ids_are_cut_and_what_is_left_is_what_is_warm(
    tmp_path: Path, model_folder: Path
) -> None:
    async with standing(tmp_path, model_folder) as stand:
        await stand.generate({"model": "demo", "prompt": IDS})
        await stand.generate({"model": "demo", "prompt": IDS[-40:]})
        await stand.has_blocks(8)
        for body, ids, matched in (
            ({}, IDS, 96),
            ({"truncate_prompt_tokens": 40}, IDS[-40:], 32),
            ({"truncate_prompt_tokens": 40, "truncation_side": "right"}, IDS[:40], 32),
            ({"truncate_prompt_tokens": 100}, IDS, 96),
            ({"truncate_prompt_tokens": 41}, IDS[-41:], 0),
        ):
            raw = json.dumps({"model": "demo", "prompt": IDS} | body).encode()
            answer = await stand.score(pb.Prompt(completions_body=raw), explain=True)
            assert answer.explanation.token_ids_packed == pack_tokens(ids)
            assert answer.scores[0].matched_tokens == matched
            picked = await stand.stub.Pick(pb.PickRequest(prompt=pb.Prompt(completions_body=raw)))
            assert picked.prompt_tokens == len(ids)


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"truncate_prompt_tokens": -1}, "truncate_prompt_tokens", "not known here"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "at least one"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "at least one"),
        ({"truncate_prompt_tokens": "9"}, "truncate_prompt_tokens", "is not an integer"),
        ({"truncate_prompt_tokens": True}, "truncate_prompt_tokens", "is not an integer"),
        ({"truncate_prompt_tokens": 9, "truncation_side": "up"}, "truncation_side", "left nor right"),
        ({"truncation_side": []}, "truncation_side", "left nor right"),
    ],
)  # fmt: skip
async def test_what_cannot_be_honoured_is_refused_by_name(
    fields: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(BadRequestError, match=words) as error:
        await parse_completions(json.dumps({"prompt": [1], **fields}).encode(), "body", 9)
    assert error.value.field == f"body.{field}"
