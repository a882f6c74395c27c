"""A process may load our stubs beside a user's own of the same contracts."""

import subprocess
import sys
from itertools import permutations
from pathlib import Path

import pytest
from google.protobuf import descriptor_pool
from grpc_tools import protoc

from warmpath.proto.pb.indexer.v1 import indexer_pb2
from warmpath.proto.pb.warmpath.v1 import router_pb2
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2
from warmpath.proto.pb.warmpath.wire.v1 import score_request_pb2, status_details_pb2

ROOT = Path(__file__).parents[2]
OURS = {
    "warmpath/v1/router.proto": router_pb2,
    "warmpath/wire/v1/score_request.proto": score_request_pb2,
    "warmpath/wire/v1/status_details.proto": status_details_pb2,
    "warmpath/watch/v1/cache_watch.proto": cache_watch_pb2,
    "indexer/v1/indexer.proto": indexer_pb2,
}


def stubs(out: Path, mapping: str, folder: str) -> str:
    """Write a user's stubs and return the module's name."""
    out.mkdir()
    arguments = ["protoc", f"-I{mapping}", f"--python_out={out}", f"--grpc_python_out={out}"]
    assert protoc.main([*arguments, f"{folder}/warmpath/v1/router.proto".lstrip("/")]) == 0
    return f"{folder}/warmpath/v1/router_pb2_grpc".lstrip("/").replace("/", ".")


def of_another_version(folder: Path) -> Path:
    text = (ROOT / "proto/warmpath/v1/router.proto").read_text()
    path = folder / "warmpath/v1/router.proto"
    path.parent.mkdir(parents=True)
    path.write_text(text.replace("message TokenIds {", "message TokenIds {\n  uint32 newer = 99;"))
    return folder


def load(folder: Path, *steps: str) -> None:
    """Run the steps in a process that has `folder` before ours on its path."""
    environment = {"PYTHONPATH": f"{folder}:{ROOT}", "PATH": ""}
    subprocess.run([sys.executable, "-c", "\n".join(steps)], env=environment, check=True, cwd="/")


def test_a_users_stubs_from_another_root_load_before_ours_and_after(tmp_path: Path) -> None:
    user = stubs(tmp_path / "out", f"mine={ROOT / 'proto'}", "mine")
    ours = "import warmpath.client.sync_client, warmpath.proto.pb.warmpath.watch.v1.cache_watch_pb2"
    for steps in permutations((f"import {user}", ours)):
        load(tmp_path / "out", *steps)


def test_messages_of_both_are_the_same_on_the_wire(tmp_path: Path) -> None:
    user = stubs(tmp_path / "out", f"mine={ROOT / 'proto'}", "mine")
    load(
        tmp_path / "out",
        f"import {user.removesuffix('_grpc')} as theirs",
        "from warmpath.proto.pb.warmpath.v1 import router_pb2 as ours",
        "raw = theirs.PodScore(pod='pod-1', score=3).SerializeToString()",
        "assert ours.PodScore.FromString(raw).pod == 'pod-1'",
        "assert theirs.PodScore.DESCRIPTOR.full_name == ours.PodScore.DESCRIPTOR.full_name",
    )


def test_a_users_stubs_of_another_version_load_beside_ours(tmp_path: Path) -> None:
    user = stubs(tmp_path / "out", f"mine={of_another_version(tmp_path / 'proto')}", "mine")
    for steps in permutations((f"import {user}", "import warmpath.client.sync_client")):
        load(tmp_path / "out", *steps)


def test_a_users_stubs_from_our_root_load_beside_ours(tmp_path: Path) -> None:
    """Their module `warmpath.v1` is hidden by our library: the user moves it to a folder of theirs."""
    stubs(tmp_path / "out", str(ROOT / "proto"), "")
    (tmp_path / "out/warmpath").rename(tmp_path / "out/theirs")
    for steps in permutations(
        ("import theirs.v1.router_pb2", "import warmpath.client.sync_client")
    ):
        load(tmp_path / "out", *steps)


@pytest.mark.parametrize("name", OURS)
def test_our_descriptors_name_their_file_as_the_contracts_folder_does(name: str) -> None:
    assert OURS[name].DESCRIPTOR.name == name
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindFileByName(name)
