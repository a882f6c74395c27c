"""Fixtures for all tests: held ports and a model folder, and the hypothesis profile."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.examples import examples
from tests.recordings import TOKENIZER
from warmpath.lab.local.ports import HeldPorts

# No deadlines: a busy machine must not fail a test.
settings.register_profile(
    "warmpath",
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)

settings.load_profile("warmpath")

# A shell that starts the tests in the background has them ignore Ctrl-C, and so would their processes.
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["tests.servers.fixtures"]
# Its assertions show what they compared, like those of tests.
pytest.register_assert_rewrite("tests.router.consistent")


@pytest.fixture
def held_ports() -> Iterator[HeldPorts]:
    """Return a HeldPorts, which reserves ports until the test ends."""
    with HeldPorts() as ports:
        yield ports


@pytest.fixture
def held_port(held_ports: HeldPorts) -> int:
    """Return a reserved port, on which no process listens until the test starts a server."""
    return held_ports.take()


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a model folder with the tokenizer and template of the recordings."""
    folder = tmp_path_factory.mktemp("tiny-llama")
    tokenizer = TOKENIZER.read_text(encoding="utf-8")
    (folder / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    template = (
        "{{ '<s>' }}{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
    )
    config = '{"bos_token": "<s>", "eos_token": "</s>", "chat_template": ' + f'"{template}"' + "}"
    (folder / "tokenizer_config.json").write_text(config, encoding="utf-8")
    return folder
