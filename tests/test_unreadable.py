"""Bytes of peers, callers and files that no decoder can read: too deep, not UTF-8, or malformed."""

import asyncio
import contextlib
import hashlib
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from warmpath.indexer.engines import sglang, trtllm, vllm
from warmpath.indexer.engines.event import Batch, MalformedEventError
from warmpath.indexer.shared.layout.record import BadRecordError, Claim, read_record
from warmpath.indexer.shared.writer.machine import rival_of
from warmpath.router import state_file
from warmpath.router.load.engine_metrics import parse
from warmpath.router.peers.received import ReceivedBookings
from warmpath.router.prompt.bodies.fields import FieldError, raw_fields

DEEP = 200_000
JSON = {
    "too deep": b'{"data":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "not UTF-8": b'{"owner":"\xff\xfe"}',
    "cut off": b'{"owner":"',
}
MSGPACK = {
    "too deep": b"\x93\xcb" + bytes(8) + b"\x91" * DEEP + b"\xc0\xc0",
    "not UTF-8": b"\x93\xcb" + bytes(8) + b"\x91\x91\xa2\xff\xfe\xc0",
    "cut off": b"\x93\xcb",
}

ROOT = Path(__file__).parents[1]


def _rival(raw: bytes) -> None:
    ours = Claim(owner="one", base=0, places=[], keyspace="k", model="m", ranks=1)
    rival_of("two", raw, ours)


def _statistics(raw: bytes) -> None:
    assert parse("trtllm", raw, ranks=1, at=0.0) == {}


def _body(raw: bytes) -> None:
    async def read() -> None:
        fields = await raw_fields(raw, ("data", "owner"))
        await fields.decoded("owner")

    asyncio.run(read())


def _bookings(raw: bytes) -> None:
    received = ReceivedBookings("one", "", lambda _: None)
    assert received.receive("two", raw, 0.0) is None
    assert received.malformed == 1


def _state(raw: bytes) -> None:
    path = Path("state")
    digest = hashlib.blake2b(raw, digest_size=state_file.DIGEST_BYTES).digest()
    path.write_bytes(state_file.HEADING + digest + raw)
    state_file.load(path, "")


def _events(decode: Callable[[bytes], Batch], raw: bytes) -> None:
    with contextlib.suppress(MalformedEventError):
        assert not decode(raw).events


READERS: dict[str, list[tuple[Callable[[bytes], object], type[Exception] | None]]] = {
    "json": [
        (lambda raw: read_record({b"token": b"1", b"claim": raw}), BadRecordError),
        (_rival, None),
        (_statistics, None),
        (_body, FieldError),
        (lambda raw: trtllm.split(b"[" + raw), MalformedEventError),
    ],
    "msgpack": [
        (_bookings, None),
        (_state, state_file.BadStateError),
        (partial(_events, vllm.decode), None),
        (partial(_events, sglang.decode), None),
    ],
}


@pytest.mark.parametrize("fault", JSON)
@pytest.mark.parametrize(
    ("form", "read", "error"),
    [(form, *reader) for form, readers in READERS.items() for reader in readers],
)
def test_what_cannot_be_read_costs_only_itself(
    form: str,
    read: Callable[[bytes], object],
    error: type[Exception] | None,
    fault: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error) if error else contextlib.nullcontext():
        read((JSON if form == "json" else MSGPACK)[fault])


def test_handlers_of_decoding_errors_name_all_of_them() -> None:
    named = re.compile(r"except [^\n]*(?:MsgspecError|msgspec\.DecodeError)")
    # The rooms of prefixstore read what a process of ours has written, and do not import indexer.
    # `_encoded` in the state file encodes.
    excused = {"prefixstore/chats/render_worker.py", "router/state_file.py"}
    found = {
        str(path.relative_to(ROOT))
        for room in ("router", "indexer", "publisher", "prefixstore", "scorer")
        for path in (ROOT / room).rglob("*.py")
        if named.search(path.read_text(encoding="utf-8"))
    }
    assert found == excused
