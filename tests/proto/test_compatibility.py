"""Callers of the last release and of this version understand each other: no contract has changed its meaning."""

from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc

from tests.proto.breaking import breaks

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


def file_of(whole: FileDescriptorSet, name: str) -> FileDescriptorProto:
    return next(file for file in whole.file if file.name.endswith(name))


def watched(whole: FileDescriptorSet, name: str) -> DescriptorProto:
    file = file_of(whole, "cache_watch.proto")
    return next(message for message in file.message_type if message.name == name)


def other_number(whole: FileDescriptorSet) -> None:
    watched(whole, "Hello").field[2].number = 9


def other_type(whole: FileDescriptorSet) -> None:
    watched(whole, "Hello").field[3].type = 4


def other_name(whole: FileDescriptorSet) -> None:
    watched(whole, "Hello").field[3].name = "count"


def other_label(whole: FileDescriptorSet) -> None:
    watched(whole, "Hello").field[3].label = 3


def other_oneof(whole: FileDescriptorSet) -> None:
    watched(whole, "Change").field[0].ClearField("oneof_index")


def no_presence(whole: FileDescriptorSet) -> None:
    field = next(one for one in watched(whole, "RankState").field if one.proto3_optional)
    field.ClearField("proto3_optional")


def no_field(whole: FileDescriptorSet) -> None:
    del watched(whole, "Hello").field[3]


def no_message(whole: FileDescriptorSet) -> None:
    file = file_of(whole, "cache_watch.proto")
    del file.message_type[0]


def no_method(whole: FileDescriptorSet) -> None:
    del file_of(whole, "v1/router.proto").service[0].method[0]


def one_answer(whole: FileDescriptorSet) -> None:
    file_of(whole, "cache_watch.proto").service[0].method[0].server_streaming = False


def other_value(whole: FileDescriptorSet) -> None:
    file = file_of(whole, "v1/router.proto")
    enum = next(one.enum_type[0] for one in file.message_type if one.enum_type)
    enum.value[1].number = 77


def other_package(whole: FileDescriptorSet) -> None:
    file_of(whole, "v1/router.proto").package = "warmpath.v2"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (other_number, "Hello.pod has another number: 9"),
        (other_type, "Hello.ranks = 4 has another type"),
        (other_name, "Hello.ranks = 4 has another name: 'count'"),
        (other_label, "Hello.ranks = 4 has another label"),
        (other_oneof, "Change.added = 1 is in another oneof"),
        (no_presence, "RankState.engine_sequence = 6 has another proto3_optional"),
        (no_field, "Hello.ranks = 4 is gone, and its number and name are not reserved"),
        (no_message, "message warmpath.watch.v1.WatchRequest is gone"),
        (no_method, "is gone"),
        (one_answer, "CacheWatch.Watch has another server_streaming"),
        (other_value, "is gone, and its number and name are not reserved"),
        (other_package, "has another package"),
    ],
)
def test_a_change_that_breaks_callers_is_named(
    change: Callable[[FileDescriptorSet], None], says: str
) -> None:
    now = released()
    change(now)
    assert any(says in found for found in breaks(released(), now)), breaks(released(), now)


def test_what_is_added_breaks_nobody() -> None:
    now = released()
    watched(now, "Hello").field.add(name="more", number=1000, type=9, label=1, json_name="more")
    file = file_of(now, "cache_watch.proto")
    file.message_type.add(name="More")
    file.service[0].method.add(name="Also", input_type=".x", output_type=".y")
    now.file.add(name="new.proto")
    assert breaks(released(), now) == []


def test_a_field_may_go_if_its_number_and_name_are_kept_from_use_for_ever() -> None:
    now = released()
    hello = watched(now, "Hello")
    del hello.field[3]
    hello.reserved_range.add(start=4, end=5)
    assert breaks(released(), now) != []
    hello.reserved_name.append("ranks")
    assert breaks(released(), now) == []
    later = FileDescriptorSet()
    later.CopyFrom(now)
    again = watched(later, "Hello")
    again.field.add(name="ranks", number=4, type=9, label=1)
    assert len(breaks(now, later)) == 2
    del again.field[3], again.reserved_range[:], again.reserved_name[:]
    assert len(breaks(now, later)) == 2
