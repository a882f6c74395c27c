"""The small parts of a worker: balance, sleep, adapters, made-up tokens, and a tokenizer's folder."""

import itertools
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.lab.simworker.state_machines import long_test
from warmpath.lab.simworker.engine import Load
from warmpath.lab.simworker.sampler import RESERVED_TOKENS, extend_seed, next_token, seed_of
from warmpath.lab.simworker.server.adapters import AdapterError, Adapters
from warmpath.lab.simworker.server.rank import Balancer, score
from warmpath.lab.simworker.server.sleep_state import LEVELS, TAGS, SleepState
from warmpath.lab.simworker.server.text import FolderText, TextError
from warmpath.prefixstore.chats.chat import ModelTemplate
from warmpath.prefixstore.chats.chat_request import chat_of
from warmpath.prefixstore.chats.jinja_template import TemplateError
from warmpath.prefixstore.chats.template import ChatTemplate


def load(running: int = 0, waiting: int = 0, usage: float = 0.0) -> Load:
    return Load(running, waiting, usage, 0, 0, 0)


def test_equal_ranks_take_turns() -> None:
    balancer = Balancer(3)
    assert [balancer.choose([0.0, 0.0, 0.0]) for _ in range(6)] == [0, 1, 2, 0, 1, 2]


@given(st.lists(st.floats(0, 100), min_size=1, max_size=6), st.integers(0, 10))
def test_the_least_loaded_rank_is_chosen(scores: list[float], turns: int) -> None:
    balancer = Balancer(len(scores))
    for _ in range(turns):
        balancer.choose(scores)
    assert scores[balancer.choose(scores)] == min(scores)


def test_waiting_weighs_more_the_fuller_the_cache_is() -> None:
    assert score(load(running=4), 0) == 4.0
    assert score(load(running=4), 6) == 6.0
    assert score(load(waiting=2, usage=0.5), 0) == 2.0
    assert score(load(waiting=2, usage=0.75), 0) == 5.0
    assert score(load(waiting=2, usage=1.0), 0) == 8.0


WOKEN: list[list[str] | None] = [
    None, ["weights"], ["kv_cache"], ["weights", "kv_cache"], ["scheduling"], ["other"],
    ["weights", "other"], ["kv_cache", "scheduling"],
]  # fmt: skip


class Sleeping(RuleBasedStateMachine):
    """A worker that is put to sleep and woken in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.state = SleepState()
        self.resident = set(TAGS)
        self.paused = False

    @rule(level=st.sampled_from(LEVELS))
    def sleep(self, level: int) -> None:
        self.state.sleep(level)
        self.paused = True
        if level:
            self.resident.clear()

    @rule(tags=st.sampled_from(WOKEN))
    def wake(self, tags: list[str] | None) -> None:
        wanted = set(TAGS) - self.resident if tags is None else set(tags) - {"scheduling"}
        if tags is None or (not wanted & self.resident and wanted <= set(TAGS)):
            self.resident |= wanted
        awake = self.state.wake(tags)
        assert awake == (self.resident == set(TAGS))
        self.paused &= not awake

    @invariant()
    def it_sleeps_while_anything_does(self) -> None:
        self.state.check()
        assert (self.state.level is not None) == self.paused
        assert self.resident == set(TAGS) or self.state.level in {1, 2}


TestSleeping = long_test(Sleeping)


NAMED = ["base", "a", "b", "c", ""]
LOADED = list(itertools.product(NAMED, ["/x", "/y", ""], [False, True]))


class Loading(RuleBasedStateMachine):
    """Adapters that come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.adapters = Adapters("base")
        self.model: dict[str, str] = {}
        self.numbers: dict[str, int | None] = {}

    @rule(given=st.sampled_from(LOADED))
    def load(self, given: tuple[str, str, bool]) -> None:
        name, path, in_place = given
        good = name not in {"base", ""} and path and (in_place or name not in self.model)
        if not good:
            with pytest.raises(AdapterError):
                self.adapters.load(name, path, in_place=in_place)
            return
        before = self.adapters.number_of(name)
        self.adapters.load(name, path, in_place=in_place)
        self.model[name] = path
        assert before is None or before == self.adapters.number_of(name)

    @rule(name=st.sampled_from(NAMED))
    def unload(self, name: str) -> None:
        if name in self.model:
            self.adapters.unload(name)
            del self.model[name]
        else:
            with pytest.raises(AdapterError) as raised:
                self.adapters.unload(name)
            assert raised.value.unknown

    @invariant()
    def the_loaded_ones_are_there(self) -> None:
        self.adapters.check()
        assert {one.name: one.path for one in self.adapters.all()} == self.model
        assert all(self.adapters.get(name) for name in self.model)
        assert self.adapters.get("base") is None


TestLoading = long_test(Loading)


TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=20)


@given(TOKENS, TOKENS)
def test_a_seed_that_is_extended_is_that_of_all_tokens(first: list[int], then: list[int]) -> None:
    seed = seed_of(first)
    for token in then:
        seed = extend_seed(seed, token)
    assert seed == seed_of([*first, *then])


@given(st.binary(max_size=4), st.integers(0, 2**31 - 1), st.integers(0, 99), st.integers(1, 40))
def test_tokens_are_below_the_vocabulary_s_size_and_not_special(
    seed: bytes, last: int, position: int, size: int
) -> None:
    token = next_token(seed, last, position, size)
    assert 0 <= token < size
    assert token >= RESERVED_TOKENS or size <= RESERVED_TOKENS


TEMPLATES = Path(__file__).parents[3] / "prefixstore" / "templates"

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


def with_tools() -> list[dict[str, Any]]:
    """Return bodies with tools or tool calls that vLLM was asked (`tests/vllm/record_chats.py` of commit 7b94846c)."""
    lines = (TEMPLATES.parent / "vllm_chats.jsonl").read_text(encoding="utf-8").splitlines()
    bodies = [recorded["body"] for line in lines if "body" in (recorded := json.loads(line))]
    return [
        body
        for body in bodies
        if body.get("tools") or any(message.get("tool_calls") for message in body["messages"])
    ]


NOON = datetime(2026, 7, 26, 12, tzinfo=UTC)

WEATHER = {
    "type": "function",
    "function": {
        "parameters": {"type": "object", "properties": {"zone": {"type": "string"}, "city": {}}},
        "name": "weather",
        "description": "What is it like outside? Où?",
    },
}


@pytest.mark.parametrize("template", ["qwen-2.5.jinja", "qwen-3.jinja", "llama-3.1.jinja"])
def test_tools_become_the_tokens_that_the_router_makes_of_them(folder: Path, template: str) -> None:
    source = (TEMPLATES / template).read_text(encoding="utf-8")
    configure(folder, chat_template=source, bos_token="<s>")
    worker = FolderText(folder, clock=lambda: NOON)
    router = ChatTemplate(ModelTemplate(source, {"bos_token": "<s>"}), lambda: NOON)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    compared = 0
    for body in (*with_tools(), {"messages": HI, "tools": [WEATHER, WEATHER]}):
        if any(not isinstance(one.get("content"), str) for one in body["messages"]):
            continue
        try:
            text = router.render(chat_of(body))
        except TemplateError:
            continue  # no template takes everything
        assert worker.render(body["messages"], body) == (
            tokenizer.encode(text, add_special_tokens=False).ids
        ), body
        compared += 1
    assert compared > 5


@pytest.mark.parametrize("tools", [[], "none", [1], [{"function": {}}], [{"type": "function"}]])
def test_tools_that_are_none_are_refused(folder: Path, tools: Any) -> None:
    worker = configure(folder, chat_template="{{ tools | tojson }}")
    with pytest.raises(TextError, match="tools"):
        worker.render(HI, {"tools": tools})


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("tokenizer.json", "{}", "tokenizer.json: Model missing"),
        ("tokenizer.json", "{", "tokenizer.json: "),
        ("tokenizer_config.json", "{", "tokenizer_config.json: Expecting"),
        ("tokenizer_config.json", "[]", "tokenizer_config.json: is not a JSON object"),
        ("tokenizer_config.json", '{"chat_template": "{% if %}"}', "the chat template is not valid"),
        ("chat_template.jinja", "{{", "the chat template is not valid"),
    ],
)  # fmt: skip
def test_a_broken_file_is_named(folder: Path, name: str, text: str, message: str) -> None:
    configure(folder)
    (folder / name).write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        FolderText(folder)
