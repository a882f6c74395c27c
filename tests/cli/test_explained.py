"""`warmpath score --explain`: how a prompt became tokens, as a user sees it."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cli.conftest import Output
from tests.router.running_router import running_router
from warmpath.cli import asking as client
from warmpath.indexer.keys.key import unpack_tokens
from warmpath.prefixstore.tokenizers.tokenizer import FolderTokenizer

PROMPT = "You are a patient assistant that explains prefix caching. " * 40


@pytest.fixture
async def address(model_folder: Path) -> AsyncIterator[str]:
    tables = '[[models]]\nname = "m"\ntokenizer = "."\n'
    async with running_router(model_folder, tables) as (router, _):
        yield router.address


async def asked(address: str, *args: str) -> int:
    return await asyncio.to_thread(
        client.score_main, ["--router", address, "--model=m", "--explain", *args]
    )


async def told(address: str, output: Output, *args: str) -> dict[str, object]:
    assert await asked(address, "--json", *args) == 0
    explanation: dict[str, object] = output.json()["explanation"]
    return explanation


async def test_a_texts_tokens_and_what_of_them_was_known_are_told(
    address: str, model_folder: Path, output: Output
) -> None:
    new = await told(address, output, PROMPT)
    assert new["text"] == PROMPT
    assert new["stored_chars"] == new["stored_tokens"] == 0
    ids = unpack_tokens(base64.b64decode(str(new["token_ids_packed"])))
    tokenizer = FolderTokenizer(model_folder)
    whole = tokenizer.prefix + tokenizer.encode([PROMPT.encode()], at_start=True)[0]
    assert ids == unpack_tokens(whole + tokenizer.suffix)
    known = await told(address, output, PROMPT)
    assert known["stored_chars"] == len(PROMPT)
    assert known["stored_tokens"] == len(ids) - len(tokenizer.prefix + tokenizer.suffix) // 4
    assert known["token_ids_packed"] == new["token_ids_packed"]
    grown = await told(address, output, PROMPT + "And more.")
    assert 0 < int(str(grown["stored_chars"])) < len(PROMPT)


async def test_a_chat_is_told_as_its_template_wrote_it_with_the_time_of_each_step(
    address: str, tmp_path: Path, output: Output
) -> None:
    body = tmp_path / "chat.json"
    body.write_text(json.dumps({"messages": [{"role": "user", "content": "[b]hi[/b]"}]}))
    assert await asked(address, "--chat-file", str(body)) == 0
    printed = output.out()
    assert "[b]hi[/b]" in printed
    for part in ("text: ", "tokens: ", "block keys: ", "read the request", "render the chat"):
        assert part in printed
    assert printed.index("render the chat") < printed.index("tokenise") < printed.index("score ")


async def test_token_ids_are_explained_without_a_text(
    address: str, tmp_path: Path, output: Output
) -> None:
    ids = tmp_path / "ids"
    ids.write_text("1 2 3")
    assert await asked(address, "--token-ids-file", str(ids)) == 0
    printed = output.out()
    assert "text: " not in printed
    assert "tokens: 3" in printed


async def test_nothing_is_explained_unasked(address: str, output: Output) -> None:
    args = ["--router", address, "--model=m", "--json", PROMPT]
    assert await asyncio.to_thread(client.score_main, args) == 0
    assert "explanation" not in output.json()


@pytest.mark.parametrize("is_chat", [False, True])
async def test_where_each_token_ends_in_the_text_is_told(
    address: str, output: Output, model_folder: Path, tmp_path: Path, *, is_chat: bool
) -> None:
    body = tmp_path / "chat.json"
    body.write_text(json.dumps({"messages": [{"role": "user", "content": PROMPT}]}))
    explained = await told(
        address, output, *(["--chat-file", str(body)] if is_chat else [f"\u65e5 {PROMPT}"])
    )
    text, ends = str(explained["text"]), explained["token_ends"]
    assert isinstance(ends, list)
    tokens = len(base64.b64decode(str(explained["token_ids_packed"]))) // 4
    assert (len(ends), ends[-1]) == (tokens, len(text))
    assert ends == sorted(ends)
    at = text.index(" prefix")
    tokenizer = FolderTokenizer(model_folder)
    [begun] = tokenizer.encode([text[:at].encode()], at_start=True)
    before = b"" if is_chat else tokenizer.prefix
    assert ends.index(at) + 1 == len(before + begun) // 4
