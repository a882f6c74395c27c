"""`warmpath doctor --config` on a router and a simulated engine: all is well, and each fault is named."""

import asyncio
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from tests.cli.conftest import Output
from tests.lab.simworker.local_worker import LocalWorker
from tests.router.running_router import running_router
from tests.router.service_stand import SETTINGS, standing, tables
from warmpath.cli import doctor
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc

IS_WELL = {
    ("router", "answer"), ("model demo", "tokenizer"), ("model demo", "chat template"),
    *(
        ("pod pod-1", name)
        for name in (
            "engine", "clock", "model", "engine kind", "prefix cache", "block size", "block hashes",
            "ranks", "tokenizer", "chat template", "events", "replay",
        )
    ),
}  # fmt: skip


async def examined(router: str, file: Path, output: Output, seconds: float = 10) -> dict[Any, Any]:
    """Return the checks of a deployment, by subject and name."""
    options = [f"--router={router}", f"--config={file}", "--json", f"--seconds={seconds}"]
    status = await asyncio.to_thread(doctor.main, options)
    found = output.json()
    assert status == int(
        bool(found["findings"]) or any(one["verdict"] == "WRONG" for one in found["checks"])
    )
    return {(one["subject"], one["check"]): one for one in found["checks"]}


async def examined_with_its_router(file: Path, output: Output) -> dict[Any, Any]:
    """Run the router of a configuration; return the checks of its deployment."""
    async with running_router(file.parent, file.read_text("utf-8")) as (router, _):  # noqa: ASYNC240
        return await examined(router.address, file, output)


async def test_a_deployment_is_well_and_each_fault_is_named_with_its_setting(
    tmp_path: Path, model_folder: Path, held_port: int, output: Output
) -> None:
    async with standing(tmp_path, model_folder) as stand:
        await stand.generate({"prompt": list(range(100, 200))})
        await stand.has_blocks(6)
        file, well = tmp_path / "doctor.toml", tables(stand.worker, model_folder, "vllm")
        file.write_text(well, encoding="utf-8")
        checks = await examined(stand.router.address, file, output)
        assert {at for at, one in checks.items() if one["verdict"] == "ok"} == IS_WELL
        assert checks["pod pod-1", "block size"]["text"] == "16 tokens"

        nowhere = f"tcp://127.0.0.1:{held_port}"
        wrong = well.replace(stand.worker.replay, nowhere).replace(
            'model = "demo"', 'model = "ids-only"'
        )
        file.write_text(wrong + "blocks = 7\n", encoding="utf-8")
        checks = await examined(stand.router.address, file, output, seconds=2)
        said = {name: one for (_, name), one in checks.items() if one["verdict"] == "WRONG"}
        assert said["blocks"]["text"] == "its cache has 199 blocks, not 7"
        assert said["model"]["text"] == "it serves demo, tuned, not ids-only"
        assert f"nothing answers at {nowhere}" in said["replay"]["text"]
        assert said["replay"]["change"].endswith("or pods[0].replay")
        assert set(said) == {"blocks", "model", "replay"}

        file.write_text(well.replace('engine = "vllm"', 'engine = "sglang"'), encoding="utf-8")
        checks = await examined(stand.router.address, file, output)
        assert checks["pod pod-1", "engine kind"]["change"] == 'pods[0].engine = "vllm"'


async def test_an_engine_with_another_template_is_named(
    tmp_path: Path, model_folder: Path, output: Output
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (model_folder / name).read_text(encoding="utf-8")
        text = text.replace("+ '<|end|>'", "") if name == "tokenizer_config.json" else text
        (other / name).write_text(text, encoding="utf-8")
    async with LocalWorker.of(SETTINGS, f"--tokenizer={other}") as worker:
        file = tmp_path / "doctor.toml"
        file.write_text(tables(worker, model_folder, "vllm"), encoding="utf-8")
        checks = await examined_with_its_router(file, output)
    assert checks["pod pod-1", "tokenizer"]["verdict"] == "ok"
    template = checks["pod pod-1", "chat template"]
    assert template["verdict"] == "WRONG"
    assert "is the first to differ" in template["text"]
    assert "or the engine's --chat-template" in template["change"]


async def test_a_tokenizer_that_is_down_is_named_and_no_prompt_is_shown(
    tmp_path: Path, held_port: int, output: Output
) -> None:
    async with LocalWorker.of(SETTINGS) as worker:
        file = tmp_path / "doctor.toml"
        file.write_text(
            tables(worker, tmp_path, "vllm").replace(
                f'tokenizer = "{tmp_path}"', f'tokenizer-urls = ["http://127.0.0.1:{held_port}"]'
            ),
            encoding="utf-8",
        )
        checks = await examined_with_its_router(file, output)
    for name in ("tokenizer", "chat template"):
        assert checks["model demo", name]["verdict"] == "WRONG"
        assert checks["model demo", name]["change"] == "models (demo).tokenizer-urls"
        assert ("pod pod-1", name) not in checks
    assert "deployment is checked" not in str(checks)


async def test_a_model_for_token_ids_alone_gets_no_finding_by_being_checked(
    tmp_path: Path, model_folder: Path, output: Output
) -> None:
    async with LocalWorker.of(SETTINGS) as worker:
        file = tmp_path / "doctor.toml"
        well = tables(worker, model_folder, "vllm")
        file.write_text(well.replace('model = "demo"', 'model = "ids-only"'), encoding="utf-8")
        async with running_router(tmp_path, file.read_text(encoding="utf-8")) as (router, channel):
            await examined(router.address, file, output)
            asking = [f"--router={router.address}", "--json"]
            await asyncio.to_thread(doctor.main, asking)
            found = output.json()["findings"]
            assert "tokenizer" not in {one["kind"] for one in found}, found

            a_users = pb.ScoreRequest(prompt=pb.Prompt(model="ids-only", text="a text"))
            with pytest.raises(grpc.aio.AioRpcError, match="send token ids"):
                await router_pb2_grpc.RouterStub(channel).Score(a_users, timeout=30)
            await asyncio.to_thread(doctor.main, asking)
            found = output.json()["findings"]
            assert ("ids-only", "tokenizer") in {(one["model"], one["kind"]) for one in found}


async def test_without_router_and_engine_both_are_named(
    tmp_path: Path, held_port: int, output: Output
) -> None:
    file = tmp_path / "router.toml"
    file.write_text(
        f'[server]\nlisten = "127.0.0.1:{held_port}"\n[[models]]\nname = "demo"\n[[pods]]\nid = "p"\n'
        f'model = "demo"\naddress = "127.0.0.1:{held_port}"\n',
        encoding="utf-8",
    )
    assert await asyncio.to_thread(doctor.main, [f"--config={file}"]) == 1
    lines = output.out().splitlines()
    assert lines[0].startswith("WRONG      router: answer: no router answers at 127.0.0.1:")
    assert lines[0].endswith("; or change server.listen")
    assert lines[1].startswith("WRONG      pod p: engine: cannot connect to 127.0.0.1:")
    assert lines[1].endswith("start the engine, or change pods[0].address or pods[0].https")
    assert len(lines) == 2


def test_a_file_that_is_none_is_a_mistake_of_use(tmp_path: Path, output: Output) -> None:
    assert doctor.main([f"--config={tmp_path / 'none.toml'}"]) == 2
    assert "there is no such file" in output.err()
