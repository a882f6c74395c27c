"""A folder's tokenizer: its tokens are added as `transformers` adds them, and the memory of a text is bounded."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.recordings import TOKENIZER
from warmpath.prefixstore.tokenizers.tokenizer import FolderTokenizer, TokenizerUnavailableError

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
