"""Engines that ask for an API key are asked with it, and one that refuses the router is named."""

from pathlib import Path

import pytest

from tests.router.pods.engine import Engine
from warmpath.router.config.files import EngineKey
from warmpath.router.diagnosis.attribution import Row
from warmpath.router.diagnosis.findings import findings
from warmpath.router.diagnosis.mispredictions import PodFacts
from warmpath.router.pods.probe import LOOKS


@pytest.mark.parametrize("is_all_guarded", [False, True])
async def test_the_models_of_an_engine_that_wants_a_key_are_known_with_the_key_of_its_file(
    engine: Engine, tmp_path: Path, *, is_all_guarded: bool
) -> None:
    engine.key = "first-key"
    engine.list_adapters("tuned")
    if is_all_guarded:
        engine.open_pages.clear()
    file = tmp_path / "key"
    file.write_text("first-key\n")
    engine.prober.key = EngineKey(file)
    await engine.look()
    assert engine.status.healthy
    assert engine.status.adapters == {"tuned"}
    assert engine.status.version == "0.32.0"
    assert not engine.status.refusal


async def test_a_key_that_is_replaced_is_used_as_soon_as_the_engine_refuses_the_old_one(
    engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine.key = "first-key"
    engine.list_adapters("tuned")
    file = tmp_path / "key"
    file.write_text("first-key")
    engine.prober.key = EngineKey(file)
    await engine.look()
    engine.key = "second-key"
    engine.list_adapters()
    await engine.look(LOOKS)
    refused = (
        f"/v1/models answers 401 and /version answers 401: the engine refuses the key in {file}"
    )
    assert engine.status.refusal.startswith(refused)
    assert engine.status.adapters == {"tuned"}, "what it told before"
    file.write_text("second-key")
    await engine.look()
    assert not engine.status.refusal
    assert not engine.status.adapters
    assert "-key" not in caplog.text.replace("key-file", ""), "no key is logged"


@pytest.mark.parametrize("status", [401, 403])
async def test_an_engine_that_wants_a_key_and_gets_none_is_a_finding_and_one_line_of_the_log(
    engine: Engine, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    engine.key = "first-key"
    engine.list_adapters("tuned")
    engine.refusal = status
    await engine.look(LOOKS + 1)
    said = [one.message for one in caplog.records if "key-file" in one.message]
    assert len(said) == 1
    assert f"pod p: /v1/models answers {status}" in said[0]
    facts = PodFacts(False, True, (), Row("p", "m"), refusal=engine.status.refusal)
    [found] = [one for one in findings(facts) if one.kind == "key"]
    assert "key-file" in found.text
    engine.open_pages |= {"/v1/models", "/version"}
    await engine.look()
    assert not engine.status.refusal
    assert engine.status.adapters == {"tuned"}, "a page that was refused is asked for at each look"


async def test_a_key_file_that_cannot_be_read_is_named_and_read_when_it_is_there(
    engine: Engine, tmp_path: Path
) -> None:
    engine.key = "first-key"
    engine.list_adapters("tuned")
    file = tmp_path / "key"
    engine.prober.key = EngineKey(file)
    for content in (None, b"", b"two words", b"no\x00text", "schlüssel".encode()):
        if content is not None:
            file.write_bytes(content)
        await engine.look()
        assert f"there is no key in {file}" in engine.status.refusal
    file.write_bytes(b"first-key\r\n")
    await engine.look()
    assert not engine.status.refusal
