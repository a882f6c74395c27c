"""Tokens served are always the tokens of the whole text."""

import gzip
import json
import unicodedata
from collections import Counter
from collections.abc import Iterator
from copy import copy
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, processors

from tests.examples import examples
from tests.prefixstore.families import FAMILIES, GAPS, PARTS, text
from tests.recordings import VLLM_TRACE
from warmpath.prefixstore.chats.chat import ModelTemplate
from warmpath.prefixstore.chats.template import ChatTemplate
from warmpath.prefixstore.cuts import expressions, proof
from warmpath.prefixstore.cuts.proof import SLICE, cut_finder, slices_of
from warmpath.prefixstore.pool import TokenizerPool
from warmpath.prefixstore.store import LruStore
from warmpath.prefixstore.tokenizers.tokenizer import FolderTokenizer, TokenizerUnavailableError
from warmpath.prefixstore.workers import Workers
from warmpath.router.prompt.bodies.openai import ChatBody, Text, parse_chat, parse_completions

PROMPTS = examples(400, desk=50)
GROWN = 4
"""How often each prompt grows. With 14 families: 22,400 texts in `make test-deep`."""
STORE_BYTES = 750 * PROMPTS
"""So few that the store forgets now and then."""

REFUSED = {
    "anthropic (NFKC, GPT-2's expression)",
    *("metaspace bpe", "unigram", "word piece", "unsplittable bpe"),
}
"""The families that `fastokens` does not load."""

Pair = tuple[str, FolderTokenizer, Tokenizer]


def save(path: Path, tokenizer: Tokenizer) -> FolderTokenizer:
    tokenizer.save(str(path / "tokenizer.json"))
    return FolderTokenizer(path)


# They take 5 to 15 s of processor time; smaller ones that the desk builds have their expressions.
LARGEST = {"tekken (tiktoken, o200k's kind)", "deepseek (three splits)"}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=[pytest.mark.deep] if name in LARGEST else []) for name in FAMILIES
    ],
)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Our tokenizer and the whole-text oracle."""
    oracle = FAMILIES[request.param]()
    return request.param, save(tmp_path_factory.mktemp("family"), oracle), oracle


def ids(packed: bytes) -> list[int]:
    return [int.from_bytes(packed[at : at + 4], "little") for at in range(0, len(packed), 4)]


def prompts(name: str, own: list[str]) -> Iterator[str]:
    """Yield prompts that grow by a character, or some, and that share beginnings."""
    rng = Random(name)
    prompt = ""
    for _ in range(PROMPTS):
        prompt = prompt[: rng.randrange(len(prompt) + 1)] if rng.random() < 0.5 else ""
        prompt += text(rng, own)
        yield prompt
        for _ in range(GROWN - 1):
            prompt += rng.choice((rng.choice(PARTS)[:1], rng.choice(GAPS), "a", " ", "'s"))
            yield prompt


@pytest.mark.random
async def test_a_text_has_the_tokens_of_the_whole_however_much_of_it_is_known(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, ours, oracle = pair
    own = [token.content for token in oracle.get_added_tokens_decoder().values()][:50]
    slow = copy(ours)
    slow.stay_slow("as for a test")
    pool = TokenizerPool(
        lambda: LruStore(STORE_BYTES, 1),
        Workers(1, hang_seconds=60, most_lost=0),
        max_prompts=1,
        max_bytes=1 << 20,
    )
    monkeypatch.setattr("warmpath.prefixstore.pool.FAST_SLICE", SLICE)
    # Texts whole, then most of them by the store, and then that with `tokenizers` alone.
    ways = {"whole": (ours, 1 << 20), "stored": (ours, SLICE), "slow": (slow, 0)}
    known: Counter[str] = Counter()
    for number, prompt in enumerate(prompts(name, own)):
        special = number % 2 == 0
        expected = oracle.encode(prompt, add_special_tokens=special).ids
        for way, (tokenizer, at_once) in ways.items():
            monkeypatch.setattr("warmpath.prefixstore.tokenizers.tokenizer.AT_ONCE_BYTES", at_once)
            tokens = await pool.encode(
                way, tokenizer, prompt, add_special_tokens=special, timeout=None
            )
            assert ids(tokens.ids) == expected, (way, prompt)
            known[way] += tokens.stored_chars > 0
    assert ours.fast or name in REFUSED
    assert not (ours.fast and known["whole"])
    for way in ("stored", "slow"):
        assert (known[way] > PROMPTS) == ours.has_cuts
        assert not ours.has_cuts or pool.stores[way].stats.evictions
    assert not pool.rechecks.disagreements.keys() & {"whole", "stored"}
    await pool.close()


def test_what_is_known_to_be_splittable_is_split_and_the_rest_is_not(pair: Pair) -> None:
    name, ours, _ = pair
    assert ours.has_cuts == (name != "unsplittable bpe")
    raw = b"some words " * 200
    assert (ours.cut(raw, 0, 1000) > 900) == ours.has_cuts


CHARACTERS = st.one_of(st.sampled_from([*PARTS, *GAPS]), st.text(max_size=6))
TEXTS = st.lists(CHARACTERS, max_size=80).map(
    lambda parts: "".join(parts).encode("utf-8", "ignore").decode()
)


@settings(max_examples=examples(60), deadline=None)
@given(prompt=TEXTS)
def test_a_text_cut_wherever_it_may_be_has_the_tokens_of_the_whole(pair: Pair, prompt: str) -> None:
    _, ours, oracle = pair
    raw = prompt.encode()
    parts, begin = [], 0
    for end in range(len(raw) + 1):
        cut = ours.cut(raw, begin, end)
        if cut > begin:
            parts.append(raw[begin:cut])
            begin = cut
    encoded = b"".join(ours.encode([*parts, raw[begin:]], at_start=True))
    assert ids(encoded) == oracle.encode(prompt, add_special_tokens=False).ids


@settings(max_examples=examples(200), deadline=None)
@given(prompt=TEXTS, more=st.text(max_size=300).map(lambda t: t.encode("utf-8", "ignore")))
def test_a_text_that_grows_keeps_its_full_slices_and_their_cuts(prompt: str, more: bytes) -> None:
    find = cut_finder(proof.Cuts(expressions.BREAKS))
    raw = prompt.encode() * 8
    before, after = slices_of(raw), slices_of(raw + more)
    assert after[: len(before) - 1] == before[:-1]
    assert all(len(piece) == SLICE for piece in before[:-1])
    assert len(before[-1]) < SLICE
    for end in range(SLICE, len(raw) + 1, SLICE):
        assert find(raw, 0, end) == find(raw + more, 0, end)


LETTER = regex.compile(f"[{expressions.LETTERS}]")


@settings(max_examples=examples(400), deadline=None)
@given(around=st.text(max_size=8), cut=st.sampled_from(expressions.BREAKS), letter=st.characters())
def test_no_known_alternative_matches_over_a_cut(around: str, cut: str, letter: str) -> None:
    letter = letter if LETTER.fullmatch(letter) else "s"
    for at in range(len(around) + 1):
        string = f"{around[:at]}{letter}{cut}{around[at:]}"
        for pattern in expressions.KNOWN:
            for start in range(at + 1):
                found = regex.compile(pattern, regex.V1).match(string, start)
                assert not found or found.end() <= at + 1, (pattern, string)


@pytest.mark.parametrize("pattern", sorted(expressions.OF_LETTERS))
def test_an_alternative_that_is_said_to_match_every_letter_does(pattern: str) -> None:
    for point in range(0x10000):
        if LETTER.fullmatch(chr(point)):
            assert regex.compile(pattern, regex.V1).fullmatch(chr(point)), hex(point)


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
SPLIT = {"type": "Split", "pattern": {"Regex": "\\s+|\\p{L}+"}, "behavior": "Isolated"}


UNSPLIT = BYTE_LEVEL | {"use_regex": False}
METASPACE = {"type": "Metaspace", "split": False}
RUNS = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}


def bpe(*vocab: str, **more: Any) -> dict[str, Any]:
    return {"type": "BPE", "vocab": {token: at for at, token in enumerate(vocab)}, **more}


def sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": steps}


GOOD = {"model": bpe(), "normalizer": None, "pre_tokenizer": BYTE_LEVEL}


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"type": "Unigram"}, "pre_tokenizer": None},
        {"model": bpe("x"), "pre_tokenizer": None},
        {"model": bpe(" ", "x ", merges=[["x", " "]]), "pre_tokenizer": None},
        {"model": bpe("Ġ", "tĠ", merges=["t Ġ"]), "pre_tokenizer": sequence(UNSPLIT, SPLIT)},
        {"model": bpe("▁", "_"), "pre_tokenizer": METASPACE | {"replacement": "_"}},
        {"model": bpe("▁", "Ġ"), "pre_tokenizer": sequence(UNSPLIT, METASPACE)},
        {"model": bpe(" ", ignore_merges=True), "pre_tokenizer": None},
        {"model": {"type": "BPE", "dropout": 0.1}},
        {"model": {"type": "Strange"}},
        {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}},
        {"normalizer": {"type": "Prepend", "prepend": "▁"}},
        {"normalizer": {"type": "Replace", "pattern": {"String": "a "}, "content": "b"}},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Strange"}]}},
        {"normalizer": {"type": "NFD"}},
        {"normalizer": {"type": "BertNormalizer"}},
        {"normalizer": {"type": "Precompiled"}},
        {"normalizer": RUNS | {"content": ""}},
        {"normalizer": RUNS},
        {"normalizer": RUNS, "pre_tokenizer": {"type": "WhitespaceSplit"}},
        {"normalizer": {"type": "BertNormalizer"}, "model": bpe(" "), "pre_tokenizer": None},
        {"pre_tokenizer": UNSPLIT},
        {"pre_tokenizer": SPLIT | {"pattern": {"Regex": "x"}}},
        {"pre_tokenizer": SPLIT | {"pattern": {"String": "x"}}},
        {"pre_tokenizer": SPLIT | {"pattern": {"Regex": "(?<=a)\\s+|\\p{L}+"}}},
        {"pre_tokenizer": SPLIT | {"behavior": "MergedWithPrevious"}},
        {"pre_tokenizer": {"type": "Punctuation", "behavior": "MergedWithPrevious"}},
        {"pre_tokenizer": {"type": "UnicodeScripts"}},
        {"added_tokens": [{"content": "two words"}]},
        {"added_tokens": [{"content": "end", "rstrip": True}]},
        {"added_tokens": [{"content": " end", "single_word": True}]},
        {"added_tokens": [{"content": ""}]},
    ],
)
def test_a_tokenizer_for_which_nothing_is_proven_has_no_cuts(change: dict[str, Any]) -> None:
    assert proof.cuts_of(GOOD)
    assert not proof.cuts_of(GOOD | change)


@pytest.mark.parametrize(
    ("change", "before"),
    [
        ({"pre_tokenizer": BYTE_LEVEL | {"add_prefix_space": True}}, " "),
        ({"pre_tokenizer": SPLIT}, expressions.BREAKS),
        ({"pre_tokenizer": sequence(SPLIT, BYTE_LEVEL)}, expressions.BREAKS),
        ({"pre_tokenizer": {"type": "WhitespaceSplit"}}, " \n"),
        ({"pre_tokenizer": {"type": "BertPreTokenizer"}, "normalizer": {"type": "NFD"}}, " \n"),
        ({"normalizer": RUNS, "pre_tokenizer": {"type": "Metaspace"}}, " "),
        ({"pre_tokenizer": None, "model": bpe(" ", " x")}, " "),
        ({"added_tokens": [{"content": "<mask>", "lstrip": True, "rstrip": True}]}, expressions.BREAKS),
    ],
)  # fmt: skip
def test_what_else_is_proven(change: dict[str, Any], before: str) -> None:
    assert proof.cuts_of(GOOD | change) == proof.Cuts(before)


@pytest.mark.parametrize("content", ["New\u00a0York", "new\tyork"])
def test_an_added_token_is_looked_at_as_the_normalisers_leave_it(content: str) -> None:
    tokens = [{"content": content, "normalized": True}]
    definition = GOOD | {"normalizer": {"type": "NFKC"}, "added_tokens": tokens}
    assert proof.cuts_of(definition)

    def normalise(text: str) -> str:
        return unicodedata.normalize("NFKC", text).replace("\t", " ")

    assert not proof.cuts_of(definition, normalise)


def test_what_is_put_around_a_text_is_found_where_the_vocabulary_has_few_characters(
    tmp_path: Path,
) -> None:
    tokenizer = Tokenizer(models.BPE(vocab={"<s>": 0, "C": 1, "G": 2}, merges=[]))
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    ours = save(tmp_path, tokenizer)
    assert (ids(ours.prefix), ids(ours.suffix)) == ([0], [])


def test_cuts_that_prove_wrong_when_a_tokenizer_is_loaded_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        "warmpath.prefixstore.tokenizers.tokenizer.cuts_of", lambda *_: proof.Cuts(" ")
    )
    ours = save(tmp_path, FAMILIES["unsplittable bpe"]())
    assert not ours.has_cuts
    assert "texts are not cut" in caplog.text


async def test_the_recorded_engine_saw_exactly_these_tokens(model_folder: Path) -> None:
    tokenizer = FolderTokenizer(model_folder)
    assert tokenizer.chat_template
    model = ModelTemplate(tokenizer.chat_template, dict(tokenizer.special_tokens))
    template = ChatTemplate(model, lambda: datetime.now(UTC))
    compared = 0
    with gzip.open(VLLM_TRACE, "rt") as lines:
        for raw in map(json.loads, lines):
            if raw["kind"] != "request" or raw["status"] != 200:
                continue
            body = json.dumps(raw["body"]).encode()
            chat = "messages" in raw["body"]
            parsing = parse_chat(body, "body") if chat else parse_completions(body, "body", 10**6)
            content = (await parsing).content
            if isinstance(content, ChatBody):
                text = template.render(content.chat)
            elif isinstance(content, Text):
                text = content.text
            else:
                continue
            tokens = ids(tokenizer.encode([text.encode()], at_start=True)[0])
            assert tokens == raw["prompt_token_ids"]
            compared += 1
    assert compared > 150


@pytest.mark.parametrize("content", [None, "", "{", '{"model": {"type": "Nothing"}}'])
def test_a_broken_folder_is_named(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
    with pytest.raises(TokenizerUnavailableError, match=tmp_path.name):
        FolderTokenizer(tmp_path)
