"""A tokenizer's folder: what is read of it, and how it is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from simworker.text import FolderText

HI = [{"role": "user", "content": "hi"}]


@pytest.fixture
def folder(model_folder: Path, tmp_path: Path) -> Path:
    tokenizer = (model_folder / "tokenizer.json").read_text(encoding="utf-8")
    (tmp_path / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    return tmp_path


def configure(folder: Path, **config: Any) -> FolderText:
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return FolderText(folder)


def test_special_tokens_are_known_to_templates_however_they_are_written(folder: Path) -> None:
    template = "{{ bos_token }}{{ messages[0]['content'] }}"
    plain = configure(folder, chat_template=template, bos_token="<s>")
    full = configure(folder, chat_template=template, bos_token={"content": "<s>", "lstrip": False})
    none = configure(folder, chat_template=template)
    assert full.render(HI, {}) == plain.render(HI, {}) != none.render(HI, {})


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("tokenizer.json", "{}", "tokenizer.json: Model missing"),
        ("tokenizer.json", "{", "tokenizer.json: "),
        ("tokenizer_config.json", "{", "tokenizer_config.json: Expecting"),
        ("tokenizer_config.json", "[]", "tokenizer_config.json: is no JSON object"),
        ("tokenizer_config.json", '{"chat_template": "{% if %}"}', "the chat template is none"),
        ("chat_template.jinja", "{{", "the chat template is none"),
    ],
)
def test_a_broken_file_is_named(folder: Path, name: str, text: str, message: str) -> None:
    configure(folder)
    (folder / name).write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        FolderText(folder)
