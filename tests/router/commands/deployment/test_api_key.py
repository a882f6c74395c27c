"""An API key goes to the engines that the router sends it to, and to no other pod."""

from pathlib import Path

import pytest

from router.commands.deployment.check import Placed
from router.commands.deployment.inspect import _key
from router.config.schema import ModelSpec, PodSpec


@pytest.mark.parametrize(
    ("address", "https", "key"),
    [("h:1", False, "secret"), ("h:1", True, ""), ("h:2", False, ""), ("other:1", False, "")],
)
def test_the_key_is_sent_only_to_tokenizer_urls(
    tmp_path: Path, address: str, https: bool, key: str
) -> None:
    (tmp_path / "key").write_text("secret\n")
    model = ModelSpec("demo", tokenizer_urls=["http://h:1/"], tokenizer_key_file="key")
    pod = Placed(PodSpec(id="p", model="demo", address=address, https=https), "pods[0]")
    assert _key(pod, model, tmp_path) == key
    assert _key(pod, ModelSpec("demo"), tmp_path) == ""
