"""Compares our text and tokens of a request with the engine's own, once for each form of request."""

import json
from typing import Any

import aiohttp

from tests.engines.vllm.fleet import Fleet
from warmpath.client.calls import Prompt
from warmpath.indexer.keys.key import unpack_tokens

UNKNOWN_TO_TOKENIZE = {"truncate_prompt_tokens", "truncation_side", "reasoning_effort"}
"""Fields that vLLM's /tokenize passes over, though they change the prompt; its /render does not."""


def prompt_of(body: dict[str, Any]) -> Prompt:
    """Return a body as a prompt for the router."""
    encoded = json.dumps(body).encode()
    return Prompt(chat_body=encoded) if "messages" in body else Prompt(completions_body=encoded)


class Renderings:
    """The forms that were compared so far."""

    def __init__(self) -> None:
        self.forms: set[tuple[object, ...]] = set()

    async def compare(
        self, body: dict[str, Any], fleet: Fleet, http: aiohttp.ClientSession
    ) -> None:
        """Compare a body of a new form. Raises AssertionError where text or tokens differ."""
        form = form_of(body)
        if form in self.forms:
            return
        self.forms.add(form)
        base = fleet.engines[fleet.running[0][0]].base
        response = await fleet.clients["replica"].score(prompt_of(body), explain=True)
        ours = list(unpack_tokens(response.explanation.token_ids_packed))
        path = "chat/completions" if "messages" in body else "completions"
        rendered = await _post(http, f"{base}/v1/{path}/render", body)
        theirs = rendered if isinstance(rendered, dict) else rendered[0]
        assert ours == theirs["token_ids"], (body, ours, theirs["token_ids"])
        if not UNKNOWN_TO_TOKENIZE & set(body) and not isinstance(body.get("prompt"), list):
            tokens = await _post(http, f"{base}/tokenize", body)
            assert ours == tokens["tokens"], (body, ours, tokens)
        if "messages" in body and "truncate_prompt_tokens" not in body:
            text = await _post(http, f"{base}/detokenize", {"model": "tiny", "tokens": ours})
            # The tokenizer puts it in front of the text.
            begin = "<s>" if body.get("add_special_tokens") else ""
            assert begin + response.explanation.text == text["prompt"], (body, text)


async def _post(http: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> Any:
    async with http.post(url, json=body) as response:
        answer = await response.json()
        assert response.status == 200, (url, body, answer)
        return answer


def form_of(body: dict[str, Any]) -> tuple[object, ...]:
    """Return whatever of a body decides how it is rendered, without its texts."""
    messages = body.get("messages", [])
    shapes = {(one["role"], type(one.get("content")).__name__, *sorted(one)) for one in messages}
    prompt = type(body.get("prompt")).__name__
    return (prompt, *sorted(set(body) - {"prompt", "max_tokens"}), *sorted(shapes))
