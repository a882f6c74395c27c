"""Tokens served are always the tokens of the whole text."""

import gzip
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from prefixstore.boundary import CL100K, QWEN2, pieces_of, qualifies
from prefixstore.template import ChatTemplate
from prefixstore.tokenizer import FolderTokenizer, TokenizerUnavailableError
from router.body import ChatBody, parse_chat, parse_completions

WORDS = [
    "the", "cache", " ", "  ", "\n", "\r\n", "\t", "a b", "don't", "I'LL", "x=1;", "  if (a) {\n",
    "naïve", "e\u0301", "日本語", "नमस्ते", "العربية", "👩‍👩‍👧", "🏳️‍🌈", "12345", "3.14", "ﬁ", "\u00a0",
    "<|end|>", "<|user|>", "...", "--", "ß", "İ", "\u200d", "word word word", "a", "Z z Z",
]  # fmt: skip
TEXTS = st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=6)), max_size=400).map(
    lambda parts: " ".join(part for part in parts).encode("utf-8", "ignore").decode()
)
CORPUS = [
    "The quick brown fox jumps over the lazy dog. def main(): return 0\n" * 20,
    "Prefix caching skips most of a prompt's prefill; don't compute twice. 123 456\r\n" * 20,
]


def bpe(pattern: str | None, *, bos: bool = False) -> Tokenizer:
    """Train a byte-level BPE that splits as GPT-2 (None) or by a pattern."""
    tokenizer = Tokenizer(models.BPE())
    if pattern is None:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        from tokenizers import Regex

        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pattern), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "<|end|>", "<|user|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 0)]
        )
    return tokenizer


def metaspace() -> Tokenizer:
    """Train a BPE over whole texts with spaces as ▁: nothing is proven for it."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def folder(path: Path, tokenizer: Tokenizer) -> FolderTokenizer:
    tokenizer.save(str(path / "tokenizer.json"))
    return FolderTokenizer(path)


@pytest.fixture(scope="module", params=["recorded", "gpt2", "cl100k", "qwen2", "metaspace"])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, shared: Path
) -> tuple[FolderTokenizer, Tokenizer]:
    """Our tokenizer and the whole-text oracle."""
    oracle = {
        "recorded": lambda: Tokenizer.from_file(str(shared / "vllm-cpu" / "tokenizer.json")),
        "gpt2": lambda: bpe(None, bos=True),
        "cl100k": lambda: bpe(CL100K),
        "qwen2": lambda: bpe(QWEN2),
        "metaspace": metaspace,
    }[request.param]()
    return folder(tmp_path_factory.mktemp(request.param), oracle), oracle


def ids(packed: bytes) -> list[int]:
    return [int.from_bytes(packed[at : at + 4], "little") for at in range(0, len(packed), 4)]


@settings(max_examples=300, deadline=None)
@given(text=TEXTS)
def test_the_pieces_tokens_are_the_whole_texts_tokens(
    pair: tuple[FolderTokenizer, Tokenizer], text: str
) -> None:
    ours, oracle = pair
    pieces = ours.split(text)
    assert "".join(pieces) == text
    whole = oracle.encode(text, add_special_tokens=True).ids
    assert ids(ours.prefix + b"".join(ours.encode(pieces)) + ours.suffix) == whole


@settings(max_examples=200, deadline=None)
@given(text=TEXTS, more=st.text(max_size=40))
def test_a_prompt_that_grows_keeps_its_pieces(text: str, more: str) -> None:
    before, after = pieces_of(text), pieces_of(text + more)
    assert after[: len(before) - 1] == before[:-1]


def test_what_is_known_to_be_splittable_is_split_and_the_rest_is_not(
    pair: tuple[FolderTokenizer, Tokenizer], request: pytest.FixtureRequest
) -> None:
    ours, _ = pair
    text = "some words " * 200
    splittable = "metaspace" not in request.node.name
    assert (len(ours.split(text)) > 5) == splittable


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"type": "Unigram"}},
        {"normalizer": {"type": "Lowercase"}},
        {"pre_tokenizer": None},
        {"pre_tokenizer": BYTE_LEVEL | {"add_prefix_space": True}},
        {"pre_tokenizer": BYTE_LEVEL | {"use_regex": False}},
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "x"}, "behavior": "Isolated"}},
        {"added_tokens": [{"content": "two words"}]},
        {"added_tokens": [{"content": "end", "rstrip": True}]},
        {"added_tokens": [{"content": "end", "lstrip": True}]},
    ],
)
def test_a_tokenizer_for_which_nothing_is_proven_does_not_qualify(change: dict[str, Any]) -> None:
    good = {"model": {"type": "BPE"}, "normalizer": None, "pre_tokenizer": BYTE_LEVEL}
    assert qualifies(good)
    assert not qualifies(good | change)


def test_the_recorded_engine_saw_exactly_these_tokens(shared: Path, model_folder: Path) -> None:
    tokenizer = FolderTokenizer(model_folder)
    assert tokenizer.chat_template
    template = ChatTemplate(
        tokenizer.chat_template, tokenizer.special_tokens, clock=lambda: datetime.now(UTC)
    )
    compared = 0
    with gzip.open(shared / "vllm-cpu" / "trace.jsonl.gz", "rt") as lines:
        for raw in map(json.loads, lines):
            if raw["kind"] != "request" or raw["status"] != 200:
                continue
            body = json.dumps(raw["body"]).encode()
            chat = "messages" in raw["body"]
            content = (parse_chat if chat else parse_completions)(body, "body").content
            if isinstance(content, ChatBody):
                text: Any = template.render_chat(content.chat)
            else:
                text = content.prompt
            if isinstance(text, str):
                tokens = ids(b"".join(tokenizer.encode(tokenizer.split(text))))
                assert tokens == raw["prompt_token_ids"]
                compared += 1
    assert compared > 150


@pytest.mark.parametrize("content", [None, "", "{", '{"model": {"type": "Nothing"}}'])
def test_a_broken_folder_is_named(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
    with pytest.raises(TokenizerUnavailableError, match=tmp_path.name):
        FolderTokenizer(tmp_path)
