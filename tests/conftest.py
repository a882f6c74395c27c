"""What all tests share: where shared material lies, and free ports."""

import socket
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.examples import examples

# A busy machine is no finding: nothing here is about time.
settings.register_profile(
    "warmpath",
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("warmpath")

pytest_plugins = ["tests.servers.fixtures"]

SHARED = Path(__file__).resolve().parents[1].parent / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    return SHARED


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a model folder with the tokenizer and template of the recordings."""
    folder = tmp_path_factory.mktemp("tiny-llama")
    tokenizer = (SHARED / "vllm-cpu" / "tokenizer.json").read_text(encoding="utf-8")
    (folder / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    template = (
        "{{ '<s>' }}{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
    )
    config = '{"bos_token": "<s>", "eos_token": "</s>", "chat_template": ' + f'"{template}"' + "}"
    (folder / "tokenizer_config.json").write_text(config, encoding="utf-8")
    return folder
