"""Callers of the last release and of this version understand each other: a check like buf's, and that it finds breaks.

A process may load our stubs beside a user's own of the same contracts.
"""

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)
from grpc_tools import protoc

from warmpath.proto.pb.indexer.v1 import indexer_pb2
from warmpath.proto.pb.warmpath.v1 import router_pb2
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2
from warmpath.proto.pb.warmpath.wire.v1 import score_request_pb2, status_details_pb2

FIELD = ("name", "type", "type_name", "label", "proto3_optional", "json_name")
METHOD = ("input_type", "output_type", "client_streaming", "server_streaming")


def breaks(released: FileDescriptorSet, now: FileDescriptorSet) -> list[str]:
    """Return each change by which a caller, a server or a stored message of the release is misread.

    New files, messages, fields, values, services and methods are no break. A field or a value may go if its
    number and its name are reserved.
    """
    return [*_pairs("file", "", released.file, now.file, _file)]


def _pairs(
    kind: str,
    where: str,
    before: Iterable[Any],
    after: Iterable[Any],
    compare: Callable[[str, Any, Any], Iterator[str]],
) -> Iterator[str]:
    """Compare all of a kind by name; each has to be there still."""
    there = {one.name: one for one in after}
    for old in before:
        name = f"{where}.{old.name}".lstrip(".")
        if old.name not in there:
            yield f"{kind} {name} is gone"
        else:
            yield from compare(name, old, there[old.name])


def _file(name: str, old: FileDescriptorProto, new: FileDescriptorProto) -> Iterator[str]:
    if (old.package, old.syntax) != (new.package, new.syntax):
        yield f"file {name} has another package or syntax"
    package = old.package
    yield from _pairs("message", package, old.message_type, new.message_type, _message)
    yield from _pairs("enum", package, old.enum_type, new.enum_type, _enum)
    yield from _pairs("service", package, old.service, new.service, _service)


def _message(name: str, old: DescriptorProto, new: DescriptorProto) -> Iterator[str]:
    now = {field.number: field for field in new.field}
    for field in old.field:
        at = f"field {name}.{field.name} = {field.number}"
        if field.number not in now:
            if not _is_reserved(field.number, field.name, new, past=1):
                yield f"{at} is gone, and its number and name are not reserved"
            continue
        other = now[field.number]
        for part in FIELD:
            if getattr(field, part) != getattr(other, part):
                yield f"{at} has another {part}: {getattr(other, part)!r}"
        if _oneof(field, old) != _oneof(other, new):
            yield f"{at} is in another oneof"
    numbers = {field.name: field.number for field in old.field}
    for field in new.field:
        if numbers.get(field.name, field.number) != field.number:
            yield f"field {name}.{field.name} has another number: {field.number}"
    yield from _reserved(name, old, new, now, {field.name for field in new.field}, past=1)
    yield from _pairs("message", name, old.nested_type, new.nested_type, _message)
    yield from _pairs("enum", name, old.enum_type, new.enum_type, _enum)


def _enum(name: str, old: EnumDescriptorProto, new: EnumDescriptorProto) -> Iterator[str]:
    now = {value.number: value.name for value in new.value}
    for value in old.value:
        at = f"value {name}.{value.name} = {value.number}"
        if value.number not in now:
            if not _is_reserved(value.number, value.name, new, past=0):
                yield f"{at} is gone, and its number and name are not reserved"
        elif now[value.number] != value.name:
            yield f"{at} has another name: {now[value.number]!r}"
    yield from _reserved(name, old, new, now, {*now.values()}, past=0)


def _service(name: str, old: ServiceDescriptorProto, new: ServiceDescriptorProto) -> Iterator[str]:
    def method(at: str, before: Any, after: Any) -> Iterator[str]:
        for part in METHOD:
            if getattr(before, part) != getattr(after, part):
                yield f"method {at} has another {part}: {getattr(after, part)!r}"

    yield from _pairs("method", name, old.method, new.method, method)


def _oneof(field: FieldDescriptorProto, message: DescriptorProto) -> str:
    if not field.HasField("oneof_index"):
        return ""
    return message.oneof_decl[field.oneof_index].name


def _numbers(message: DescriptorProto | EnumDescriptorProto, past: int) -> set[int]:
    """Return the reserved numbers; `past` is 1 where ranges end before their last number."""
    ranges: Any = message.reserved_range
    return {
        number for one in ranges for number in range(one.start, min(one.end, 1 << 16) + 1 - past)
    }


def _is_reserved(
    number: int, name: str, message: DescriptorProto | EnumDescriptorProto, past: int
) -> bool:
    return number in _numbers(message, past) and name in message.reserved_name


def _reserved(
    name: str,
    old: DescriptorProto | EnumDescriptorProto,
    new: DescriptorProto | EnumDescriptorProto,
    numbers: Iterable[int],
    names: set[str],
    past: int,
) -> Iterator[str]:
    """Yield the numbers and names that were reserved, and are used or free now."""
    kept = _numbers(new, past)
    for number in sorted(_numbers(old, past)):
        if number in numbers or number not in kept:
            yield f"{name}: the number {number} is not reserved any more"
    for word in old.reserved_name:
        if word in names or word not in new.reserved_name:
            yield f"{name}: the name {word!r} is not reserved any more"


PROTO = Path(__file__).parents[2] / "proto"
RELEASED = PROTO / "released.binpb"
"""The contracts of the last release, as protoc's --descriptor_set_out writes them (docs/guides/upgrade.md)."""


def compiled(folder: Path, out: Path) -> FileDescriptorSet:
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.proto"))
    arguments = ["protoc", f"--proto_path={folder}", f"--descriptor_set_out={out}", *files]
    assert protoc.main(arguments) == 0
    return FileDescriptorSet.FromString(out.read_bytes())


def released() -> FileDescriptorSet:
    return FileDescriptorSet.FromString(RELEASED.read_bytes())


def test_no_contract_of_the_last_release_has_changed_its_meaning(tmp_path: Path) -> None:
    assert breaks(released(), compiled(PROTO, tmp_path / "now")) == []


def test_the_releases_contracts_are_those_of_all_files() -> None:
    names = {str(path.relative_to(PROTO)) for path in PROTO.rglob("*.proto")}
    assert {file.name for file in released().file} <= names
    assert sum(len(file.message_type) for file in released().file) > 30


def named(whole: FileDescriptorSet) -> dict[str, Any]:
    """Return parts of the contracts by the names that changes have for them."""
    files = {one.name.rpartition("/")[2]: one for one in whole.file if "wire" not in one.name}
    watch, router = files["cache_watch.proto"], files["router.proto"]
    of_watch = {message.name: message for message in watch.message_type}
    return {
        "watch": watch, "router": router, "hello": of_watch["Hello"], "change": of_watch["Change"],
        "optional": next(one for one in of_watch["RankState"].field if one.proto3_optional),
        "enum": next(one.enum_type[0] for one in router.message_type if one.enum_type),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("hello.field[2].number = 9", "Hello.pod has another number: 9"),
        ("hello.field[3].type = 4", "Hello.ranks = 4 has another type"),
        ("hello.field[3].name = 'count'", "Hello.ranks = 4 has another name: 'count'"),
        ("hello.field[3].label = 3", "Hello.ranks = 4 has another label"),
        ("change.field[0].ClearField('oneof_index')", "Change.added = 1 is in another oneof"),
        ("optional.ClearField('proto3_optional')", "RankState.engine_sequence = 6 has another proto3_optional"),
        ("del hello.field[3]", "Hello.ranks = 4 is gone, and its number and name are not reserved"),
        ("del watch.message_type[0]", "message warmpath.watch.v1.WatchRequest is gone"),
        ("del router.service[0].method[0]", "is gone"),
        ("watch.service[0].method[0].server_streaming = False", "CacheWatch.Watch has another server_streaming"),
        ("enum.value[1].number = 77", "is gone, and its number and name are not reserved"),
        ("router.package = 'warmpath.v2'", "has another package"),
    ],
)  # fmt: skip
def test_a_change_that_breaks_callers_is_named(change: str, says: str) -> None:
    now = released()
    exec(change, named(now))
    assert any(says in found for found in breaks(released(), now)), breaks(released(), now)


def test_what_is_added_breaks_nobody() -> None:
    now = released()
    there = named(now)
    there["hello"].field.add(name="more", number=1000, type=9, label=1, json_name="more")
    file = there["watch"]
    file.message_type.add(name="More")
    file.service[0].method.add(name="Also", input_type=".x", output_type=".y")
    now.file.add(name="new.proto")
    assert breaks(released(), now) == []


def test_a_field_may_go_if_its_number_and_name_are_kept_from_use_for_ever() -> None:
    now = released()
    hello = named(now)["hello"]
    del hello.field[3]
    hello.reserved_range.add(start=4, end=5)
    assert breaks(released(), now) != []
    hello.reserved_name.append("ranks")
    assert breaks(released(), now) == []
    later = FileDescriptorSet()
    later.CopyFrom(now)
    again = named(later)["hello"]
    again.field.add(name="ranks", number=4, type=9, label=1)
    assert len(breaks(now, later)) == 2
    del again.field[3], again.reserved_range[:], again.reserved_name[:]
    assert len(breaks(now, later)) == 2


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
