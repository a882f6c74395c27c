"""What a router saves when it ends, and what the next one makes of it."""

import asyncio
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.simworker.local_worker import LocalWorker
from tests.odd_files import ODD
from tests.router.pick_stand import pod, prompt
from tests.router.running_router import running_router, serving
from tests.router.shared_stand import IDS, WORKER, generate
from warmpath.cli import check_config
from warmpath.lab.local.cluster import MODEL, Worker
from warmpath.lab.local.ports import HeldPorts
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc
from warmpath.router import serve, state_file
from warmpath.router.assemble.running import running
from warmpath.router.config.read import parse

FULL = (len(IDS) - 1) // 16 * 16


async def matched(worker: LocalWorker | Worker, folder: Path, tokens: int) -> pb.PodScore:
    """Serve a router until it reports exactly this number of matched tokens; end it."""
    pods = pod("p", worker.address, events=worker.events, replay=worker.replay)
    tables = f'[index]\nstate-file = "state"\n[[models]]\nname = "{MODEL}"\n{pods}'
    async with running_router(folder, tables) as (_, channel):
        stub = router_pb2_grpc.RouterStub(channel)
        while True:
            response = await stub.Score(pb.ScoreRequest(prompt=prompt(160)), timeout=5)
            score = response.scores[0]
            if score.trust.level == pb.Trust.EXACT and score.matched_tokens == tokens:
                return score
            await asyncio.sleep(0.01)


async def test_a_router_goes_on_where_the_last_one_ended_though_the_replay_is_short(
    tmp_path: Path,
) -> None:
    async with LocalWorker.of(WORKER, "--buffer-steps=3") as worker:
        await generate(worker, IDS)
        await matched(worker, tmp_path, FULL)
        assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o600
        # One batch more is missed meanwhile. Without the file the first would be out of reach.
        await generate(worker, list(range(1000, 1100)))
        score = await matched(worker, tmp_path, FULL)
        assert score.trust.reason == "the gap was closed by replay"


@pytest.mark.deep
async def test_an_engine_that_restarted_meanwhile_is_not_believed_warm(
    tmp_path: Path, held_ports: HeldPorts
) -> None:
    worker = Worker.held("w", tmp_path / "log", held_ports)
    await worker.start(WORKER)
    await generate(worker, IDS)
    await matched(worker, tmp_path, FULL)
    await worker.process.stop()
    await worker.start(WORKER)
    await matched(worker, tmp_path, 0)
    await worker.process.stop()


@pytest.mark.parametrize(
    "damage",
    [
        "flipped",
        *(pytest.param(one, marks=pytest.mark.deep) for one in ("cut", "version", "empty")),
    ],
)
async def test_a_damaged_file_is_named_and_the_router_starts_cold(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with LocalWorker.of(WORKER) as worker:
        await generate(worker, IDS)
        await matched(worker, tmp_path, FULL)
        path = tmp_path / "state"
        raw = path.read_bytes()
        path.write_bytes(
            {
                "cut": raw[:-5],
                "flipped": raw[:-5] + bytes([raw[-5] ^ 1]) + raw[-4:],
                "version": raw.replace(b"state 4", b"state 9", 1),
                "empty": b"",
            }[damage]
        )
        await matched(worker, tmp_path, FULL)
        assert "starting cold" in caplog.text
        assert ("state: is empty" in caplog.text) == (damage == "empty")


@pytest.mark.deep
@pytest.mark.parametrize("processes", [1, 2])
async def test_an_end_without_saving_is_a_failure(
    tmp_path: Path, held_port: int, processes: int
) -> None:
    config = written(tmp_path, "state", processes)
    text = config.read_text().replace("127.0.0.1:0", f"127.0.0.1:{held_port}")
    async with serving(config, text) as router:
        assert "serves" in router.line
        (tmp_path / "state").mkdir()
        router.process.terminate()
        assert await router.said(f"index.state-file: nothing is saved to {tmp_path / 'state'}: ")
        assert await router.process.wait() == 1
    assert not (tmp_path / "state.new").exists()


def test_a_file_of_another_seed_is_refused(tmp_path: Path) -> None:
    state_file.save(tmp_path / "state", [], "one")
    assert state_file.load(tmp_path / "state", "one") == []
    with pytest.raises(state_file.BadStateError, match="hash-seed"):
        state_file.load(tmp_path / "state", "another")


def test_no_file_is_no_fault(tmp_path: Path) -> None:
    assert state_file.load(tmp_path / "none", "") == []


def _other(path: Path) -> None:
    path.write_text("somebody's notes")


FOREIGN: dict[str, tuple[Callable[[Path], object], str]] = {
    **{kind: (ODD[kind][0], f"is a {kind}") for kind in ("folder", "pipe", "socket")},
    "link to a folder": (lambda path: path.symlink_to(path.parent), "is a folder"),
    "link to a device": (lambda path: path.symlink_to("/dev/null"), "is a device"),
    "link in a circle": (lambda path: path.symlink_to(path), "is a link"),
    "link into nowhere": (lambda path: path.symlink_to("/no/such/file"), "there is no folder"),
    "another file": (_other, "is not a state file"),
    "link to another file": (lambda path: (_other(path.parent / "notes"), path.symlink_to("notes")), "notes is not a state file"),
}  # fmt: skip


def written(folder: Path, name: str, processes: int = 1) -> Path:
    """Return a configuration with a state file."""
    config = folder / "warmpath.toml"
    config.write_text(
        f'[server]\nlisten = "127.0.0.1:0"\nmetrics-listen = ""\nprocesses = {processes}\n'
        f'[index]\nstate-file = "{name}"\n[[models]]\nname = "m"\n'
    )
    return config


@pytest.mark.parametrize("suffix", ["", ".new", ".unusable"])
@pytest.mark.parametrize("kind", FOREIGN)
def test_what_is_no_state_file_is_refused_at_the_start_and_stays(
    tmp_path: Path, kind: str, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make, problem = FOREIGN[kind]
    place = tmp_path / f"state{suffix}"
    make(place)
    before = _as_it_was(place)
    config = written(tmp_path, "state")
    # A link at the name beside it is no way to the file.
    problem = problem if not (suffix and place.is_symlink()) else "is a link"
    for command, status in ((check_config.main, 1), (_serve, 2)):
        assert command([str(config)]) == status
        said = capsys.readouterr().err
        assert "warmpath.toml:6: index.state-file: " in said
        assert problem in said
    with pytest.raises(state_file.BadStateError):
        state_file.load(tmp_path / "state", "")
    with pytest.raises(state_file.BadStateError):
        state_file.save(tmp_path / "state", [], "")
    with pytest.raises(state_file.BadStateError):
        state_file.put_aside(tmp_path / "state")
    assert _as_it_was(place) == before


def _as_it_was(place: Path) -> tuple[int, ...]:
    """Return a file's identity, kind, size and last change: reading it may move its access time."""
    found = place.lstat()
    return found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _serve(argv: list[str]) -> int:
    return serve.main(["--config", *argv])


@pytest.mark.parametrize("name", [".", "..", "/", "sub\\u0000name", "n" * 300, "warmpath.toml"])
def test_a_name_that_can_be_no_state_file_is_refused(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check_config.main([str(written(tmp_path, name))]) == 1
    assert "warmpath.toml:6: index.state-file: " in capsys.readouterr().err


def test_what_came_there_meanwhile_is_not_replaced_at_the_end(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(parse(written(tmp_path, "state").read_text(), "test"), tmp_path):
            _other(tmp_path / "state")

    with pytest.raises(OSError, match="is not a state file"):
        asyncio.run(run())
    assert (tmp_path / "state").read_text() == "somebody's notes"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state", "warmpath.toml"]


def test_a_state_file_that_cannot_be_used_is_put_aside_and_an_older_one_of_that_name_goes(
    tmp_path: Path,
) -> None:
    path, aside = tmp_path / "state", tmp_path / "state.unusable"
    for content in (b"warmpath-state 9\nfirst", b"warmpath-state 9\nsecond"):
        path.write_bytes(content)
        state_file.put_aside(path)
        assert not path.exists()
        assert aside.read_bytes() == content
    path.touch()
    state_file.put_aside(path)
    assert aside.read_bytes().endswith(b"second"), "an empty file is nobody's loss"


def test_a_link_leads_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    link, file = tmp_path / "state", tmp_path / "disk" / "state"
    link.symlink_to(file)
    assert state_file.foreign(link) == ""
    state_file.save(link, [], "one")
    assert link.is_symlink()
    assert state_file.load(file, "one") == []
    assert file.read_bytes().startswith(state_file.HEADING)


def test_a_folder_that_cannot_be_written_to_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Who runs tests may be root, who may write anywhere.
    monkeypatch.setattr("os.access", lambda path, mode: not (path == tmp_path and mode & os.W_OK))
    assert state_file.foreign(tmp_path / "state") == (
        f"nothing can be written to the folder {tmp_path}"
    )
