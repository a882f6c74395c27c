"""Recordings of engines' APIs, and the engine's tokens of a request as the router finds them."""

import gzip
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tests.recordings import SGLANG_APIS, TOKENIZER, VLLM_APIS
from warmpath.indexer.keys.key import unpack_tokens
from warmpath.prefixstore.chats.chat import ModelTemplate, TemplateTraits
from warmpath.prefixstore.chats.template import ChatTemplate
from warmpath.prefixstore.chats.traits import traits_of
from warmpath.router.inference_api.reader import InferenceReader
from warmpath.router.inference_api.request import InferenceRequest
from warmpath.router.prompt.bodies.openai import ChatBody, Text
from warmpath.router.prompt.limits import PromptLimits
from warmpath.router.prompt.models import Model, ModelTable
from warmpath.router.prompt.parse import PromptParser

LIMITS = PromptLimits(max_prompt_bytes=1 << 20, max_prompt_tokens=10_000)


def lines(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


HEAD, *VLLM = lines(VLLM_APIS)
"""The model of the recordings, and a line for each request."""
SGLANG = lines(SGLANG_APIS)


def named(line: dict[str, Any]) -> str:
    return f"{line['path']} {line['request'][:90]}"


class Reading:
    """A router's reader of requests, and its parts that turn a prompt into tokens."""

    def __init__(self, engine: str) -> None:
        tokenizer = json.loads(TOKENIZER.read_text(encoding="utf-8"))
        tokenizer["post_processor"] = HEAD["post_processor"]
        self._tokenizer = Tokenizer.from_str(json.dumps(tokenizer))
        specials = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
        model = ModelTemplate(HEAD["template"], specials)
        self._template = ChatTemplate(model, lambda: datetime.now(UTC))
        traits = traits_of(self._template)
        models = ModelTable()
        models.add(Model("tiny"), [], [])
        self._parser = PromptParser(models, LIMITS, lambda _: 0)

        async def known(_: str) -> TemplateTraits:
            return traits

        self.reader = InferenceReader(LIMITS, lambda _: engine, known)

    async def read(self, line: dict[str, Any]) -> InferenceRequest:
        return await self.reader.read(line["path"], line["request"].encode(), "application/json")

    async def token_ids(self, request: InferenceRequest) -> list[int]:
        assert request.prompt is not None
        content = (await self._parser.parse(request.prompt)).content
        match content:
            case bytes():
                return list(unpack_tokens(content))
            case Text():
                text, special = content.text, content.add_special_tokens
            case ChatBody():
                text = self._template.render(content.chat)
                special = content.add_special_tokens
        return list(self._tokenizer.encode(text, add_special_tokens=special).ids)
