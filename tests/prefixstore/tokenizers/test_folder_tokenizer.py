"""A folder's tokenizer: its tokens are added as `transformers` adds them, and its memory is bounded.

One that takes more than it should is refused before it takes it.
"""

import base64
import json
import subprocess
import sys
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers
from transformers import AutoTokenizer

from tests.recordings import TOKENIZER
from warmpath.prefixstore.tokenizers.growth import checked_growth, growth
from warmpath.prefixstore.tokenizers.tokenizer import (
    MOST_GROWN_BYTES,
    FolderTokenizer,
    LongPieceError,
    TokenizerUnavailableError,
)
from warmpath.prefixstore.tokenizers.trial import load_folder, try_tokenizer

NEW = {"content": "<|new|>", "normalized": False, "special": True}
TEXT = "Hello world, this is <|new|> it <|next|>  ok </s>\n"


def write(folder: Path, config: dict[str, Any]) -> Path:
    definition = TOKENIZER.read_text(encoding="utf-8")
    (folder / "tokenizer.json").write_text(definition, encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"bos_token": "<s>", "eos_token": "</s>"},
        {"eos_token": "<|new|>"},
        {"eos_token": {"__type": "AddedToken", "content": "<|new|>", "lstrip": True}},
        {
            "additional_special_tokens": [
                "<|new|>",
                {"__type": "AddedToken", "content": "<|next|>", "rstrip": True},
            ]
        },
        {"added_tokens_decoder": {"4097": NEW | {"content": "<|next|>"}, "4096": NEW}},
        {"added_tokens_decoder": {"4096": NEW | {"lstrip": True}}, "eos_token": "<|next|>"},
        {"pad_token": None, "bos_token": "<s>", "add_bos_token": True},
    ],
)
def test_tokens_are_added_as_transformers_adds_them(tmp_path: Path, config: dict[str, Any]) -> None:
    folder = write(tmp_path, config | {"tokenizer_class": "PreTrainedTokenizerFast"})
    theirs = AutoTokenizer.from_pretrained(str(folder))
    ours = FolderTokenizer(folder)
    for special in (True, False):
        packed = ours.encode([TEXT.encode()], at_start=True)[0]
        if special:
            packed = ours.prefix + packed + ours.suffix
        found = [int.from_bytes(packed[at : at + 4], "little") for at in range(0, len(packed), 4)]
        assert found == theirs(TEXT, add_special_tokens=special).input_ids


def test_a_token_that_is_none_is_named_with_its_file(tmp_path: Path) -> None:
    write(tmp_path, {"eos_token": 5})
    with pytest.raises(TokenizerUnavailableError, match=r"tokenizer_config\.json: an added token"):
        FolderTokenizer(tmp_path)


def test_a_space_in_front_that_only_the_configuration_has_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    FolderTokenizer(write(tmp_path, {"add_prefix_space": False}))
    assert not caplog.text
    FolderTokenizer(write(tmp_path, {"add_prefix_space": True}))
    assert "add_prefix_space" in caplog.text


MEASURE = """
import sys, threading
from pathlib import Path
from warmpath.prefixstore.tokenizers.tokenizer import FolderTokenizer

def megabytes(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1000

tokenizer = FolderTokenizer(Path(sys.argv[1]))
texts = {"letter": [b"a" * (2 << 20)], "words": [b"quick brown fox, " * 4] * (8 << 20 >> 6)}
before = megabytes("VmRSS")
thread = threading.Thread(target=lambda: tokenizer.encode(texts[sys.argv[2]], at_start=True))
thread.start()
thread.join()
print(megabytes("VmHWM") - before, megabytes("VmRSS") - before)
"""


@pytest.mark.parametrize(("text", "at_once", "later"), [("letter", 400, 60), ("words", 300, 60)])
def test_a_text_takes_bounded_memory_and_gives_it_back(
    model_folder: Path, text: str, at_once: int, later: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(model_folder), text],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    most, left = map(float, done.stdout.split())
    assert most < at_once
    assert left < later


NORMALIZERS = st.recursive(
    st.one_of(
        st.sampled_from(["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "ByteLevel", "StripAccents"]).map(
            lambda kind: {"type": kind}
        ),
        st.just(
            {
                "type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                "strip_accents": True, "lowercase": True,
            }
        ),
        st.builds(lambda text: {"type": "Prepend", "prepend": text}, st.text("a▁ﷺ", min_size=1, max_size=4)),
        st.builds(
            lambda kind, pattern, content: {
                "type": "Replace", "pattern": {kind: pattern}, "content": content,
            },
            st.sampled_from(["String", "Regex"]),
            st.sampled_from(["a", " ", "▁a", "[a-z ]"]),
            st.text("ab▁ﷺ", max_size=6),
        ),
    ),
    lambda one: st.lists(one, max_size=3).map(
        lambda those: {"type": "Sequence", "normalizers": those}
    ),
    max_leaves=4,
)  # fmt: skip


def definition(normalizer: dict[str, Any] | None) -> dict[str, Any]:
    """Return a tokenizer's definition with a normaliser."""
    vocab = {chr(letter): letter for letter in range(32, 127)}
    made = json.loads(Tokenizer(models.WordLevel(vocab, unk_token=" ")).to_str())
    return {**made, "normalizer": normalizer}


def folder_of(path: Path, normalizer: dict[str, Any] | None) -> Path:
    (path / "tokenizer.json").write_text(json.dumps(definition(normalizer)), encoding="utf-8")
    return path


@given(normalizer=NORMALIZERS, text=st.text("aAb ▁ﷺéİ日", max_size=20))
@example({"type": "NFKC"}, "ﷺ")
def test_no_text_grows_more_than_is_said(normalizer: dict[str, Any], text: str) -> None:
    tokenizer = Tokenizer.from_str(json.dumps(definition(normalizer)))
    normal: Any = tokenizer.normalizer
    text *= 50  # so that what a step adds once hardly counts
    try:
        grown = len(normal.normalize_str(text).encode())
    except BaseException as error:
        # `tokenizers` panics where an empty text is put in front of an empty one, for one.
        assume(type(error).__name__ != "PanicException")
        raise
    assert grown < growth(normalizer) * (len(text.encode()) + 1)


def map_of(key: bytes, replacement: bytes) -> bytes:
    """Return a precompiled map of one key: each unit's offset leads to a stretch of 256 of its own."""
    units = [0] * (256 * (len(key) + 2))
    at = 0
    for number, byte in enumerate(key):
        base = 256 * (number + 1)
        units[at] |= (at ^ base) << 10
        at = base ^ byte
        units[at] = byte
    leaf = 256 * (len(key) + 1)
    units[at] |= (at ^ leaf) << 10 | 1 << 8
    units[leaf] = 1 << 31 | 2
    raw = array("I", units).tobytes()
    return len(raw).to_bytes(4, "little") + raw + b"x\0" + replacement + b"\0"


@pytest.mark.parametrize(("key", "times"), [("a", 70), ("é", 35), ("日", 24)])
def test_a_precompiled_map_grows_a_text_by_its_replacement_of_a_key(key: str, times: int) -> None:
    charsmap = map_of(key.encode(), b"b" * 70)
    assert normalizers.Precompiled(charsmap).normalize_str(key) == "b" * 70
    raw = base64.b64encode(charsmap).decode()
    assert growth({"type": "Precompiled", "precompiled_charsmap": raw}) == times
    assert growth({"type": "Precompiled", "precompiled_charsmap": None}) == growth(None) == 1


@given(raw=st.binary(max_size=4000))
def test_a_map_that_is_none_or_goes_in_circles_ends(raw: bytes) -> None:
    charsmap = base64.b64encode(len(raw).to_bytes(4, "little") + raw + b"abc\0").decode()
    assert growth({"type": "Precompiled", "precompiled_charsmap": charsmap}) >= 1


def test_the_normalisers_of_albert_and_xlnet_are_taken() -> None:
    ligature = base64.b64encode(map_of("ﷺ".encode(), b"b" * 33)).decode()
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": "``"}, "content": '"'},
        {"type": "NFKD"},
        {"type": "StripAccents"},
        {"type": "Lowercase"},
        {"type": "Precompiled", "precompiled_charsmap": ligature},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
    ]
    checked_growth({"normalizer": {"type": "Sequence", "normalizers": steps}})


def test_steps_that_multiply_without_end_are_refused_in_words() -> None:
    steps = {"type": "Sequence", "normalizers": [{"type": "NFKC"}] * 20_000}
    with pytest.raises(ValueError, match="makes up to 4294967296 bytes of one; 256 at most"):
        checked_growth({"normalizer": steps})


def test_a_text_that_would_grow_beyond_measure_is_refused_and_one_in_parts_is_not(
    tmp_path: Path,
) -> None:
    replace = {"type": "Replace", "pattern": {"String": "a"}, "content": "b" * 200}
    tokenizer = FolderTokenizer(folder_of(tmp_path, replace))
    most = MOST_GROWN_BYTES // 200
    with pytest.raises(
        LongPieceError, match=f"in one piece; .* may make 200 of each, so at most {most} are"
    ):
        tokenizer.encode([b"c" * (most + 1)], at_start=True)
    parts = [b"c" * (most // 2)] * 5
    assert tokenizer.encode(parts, at_start=True) == tokenizer.encode(parts[:1], at_start=True) * 5
    assert tokenizer.encode([], at_start=True) == []


def test_what_is_put_in_front_counts_for_each_part_between_added_tokens() -> None:
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "<a>": 1}, unk_token="[UNK]"))
    tokenizer.add_tokens([AddedToken("<a>", normalized=False)])
    tokenizer.normalizer = normalizers.Prepend("b" * 300)
    text = "<a>X" * 50
    ends = [end for _, end in tokenizer.encode(text).offsets]
    assert len(ends) == 100
    with pytest.raises(ValueError, match="makes up to 301 bytes of one; 256 at most"):
        checked_growth(json.loads(tokenizer.to_str()))


def test_pre_tokenizers_that_grow_texts_without_measure_are_refused() -> None:
    steps = {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}] * 16}
    with pytest.raises(
        ValueError, match="pre_tokenizer: makes up to 65536 bytes of one; 16 at most"
    ):
        checked_growth({"pre_tokenizer": steps})
    steps["pretokenizers"] = [{"type": "ByteLevel"}, {"type": "Split"}]
    checked_growth({"pre_tokenizer": steps})


def test_the_process_imports_nothing_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokenizers.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    try_tokenizer(folder_of(tmp_path, None))


@pytest.mark.parametrize(
    ("normalizer", "problem"),
    [
        (
            {"type": "Replace", "pattern": {"String": "a"}, "content": "b" * 5_000_000},
            "makes up to 5000000 bytes of one; 256 at most",
        ),
        (
            {"type": "Sequence", "normalizers": [
                {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}] * 9},
            "makes up to 1000000000 bytes of one",
        ),
        ({"type": "Prepend", "prepend": "b" * 5000}, "makes up to 5001 bytes of one"),
        ({"type": "Replace", "pattern": {"Regex": ""}, "content": "b" * 300}, "makes up to 301 bytes"),
    ],
)  # fmt: skip
def test_a_normaliser_that_grows_texts_without_measure_is_refused_with_its_figure(
    tmp_path: Path, normalizer: dict[str, Any], problem: str
) -> None:
    folder = folder_of(tmp_path, normalizer)
    for load in (FolderTokenizer, try_tokenizer):
        with pytest.raises(TokenizerUnavailableError) as raised:
            load(folder)
        assert str(raised.value).startswith(f"{folder}: tokenizer.json: normalizer: ")
        assert problem in str(raised.value)


def test_what_takes_too_much_memory_to_load_ends_another_process(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, None)
    try_tokenizer(folder)
    with (folder / "tokenizer.json").open("a", encoding="utf-8") as file:
        file.write(" " * (200 << 20))
    with pytest.raises(TokenizerUnavailableError, match=r"tokenizer\.json: .* 128 MiB of memory"):
        try_tokenizer(folder, most_bytes=128 << 20)


def test_what_takes_too_long_to_load_is_ended(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, None)
    with pytest.raises(TokenizerUnavailableError, match=r"is not loaded after 0\.001 s"):
        try_tokenizer(folder, most_seconds=0.001)


def test_a_folder_is_loaded_elsewhere_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(tmp_path, None)
    assert load_folder(folder).vocab_size == 127
    monkeypatch.setattr("warmpath.prefixstore.tokenizers.trial.try_tokenizer", _refuse)
    with pytest.raises(TokenizerUnavailableError, match="refused"):
        load_folder(folder)


def _refuse(_: Path) -> None:
    raise TokenizerUnavailableError("refused")
