"""Coverage-guided fuzzing of all messages except engines' events: `make fuzz`.

    requests   bytes of callers through the router's own service: every method answers, or refuses with a
               status other than INTERNAL; the scanner of a Score's bytes reads the same as protobuf
    bodies     OpenAI bodies: the fields read are those that a plain JSON decoder finds, whether or not the
               body's strings are decoded one by one
    watch      a publisher's messages: refused, or applied equally to each kind of index
    records    pods' records and logs in Redis
    segments   values in Redis: the compiled reader reads the same as pure Python
    http2      a client's bytes, and what befalls its socket, into a connection of our own gRPC server

Each target ends in bounded time and memory, with no other errors than the expected ones. In inputs of
several parts, each part comes after its length (2 bytes, big-endian). One file, since the targets share
their seeds and the form of their inputs.
"""

import asyncio
import json
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from unittest.mock import patch

import atheris
import numpy as np

from tests.fuzz.guided import COMPILED, asked, fuzz

with atheris.instrument_imports(include=["warmpath"], exclude=COMPILED):
    from tests.fuzz.asked_service import AskedService
    from tests.fuzz.http2_input import SEEDS, attack
    from tests.indexer.consistent import check
    from tests.indexer.memory_index import MemoryIndex
    from tests.indexer.segment_values import encode, pack
    from warmpath.indexer.compiled.array_index import ArrayIndex
    from warmpath.indexer.compiled.segments import stretches_of
    from warmpath.indexer.compiled.warm_up import warm_up
    from warmpath.indexer.keys import segment_value
    from warmpath.indexer.keys.key import WORD_BYTES, Chain, pack_words
    from warmpath.indexer.keys.segment import SEGMENT
    from warmpath.indexer.ranks import Ingest
    from warmpath.indexer.shared.layout.record import BadRecordError, read_record
    from warmpath.indexer.shared.query import lookup
    from warmpath.indexer.watch.client import ProtocolError, Watcher
    from warmpath.lab.verify.structure import holders
    from warmpath.process.bytes import read_message
    from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
    from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2 as watch_pb
    from warmpath.proto.pb.warmpath.wire.v1 import score_request_pb2 as wire
    from warmpath.router.calls.parse import parse
    from warmpath.router.match.match import Scorer
    from warmpath.router.prompt.bodies import fields as body_fields
    from warmpath.router.prompt.bodies import openai as body
    from warmpath.router.prompt.limits import BadRequestError
    from warmpath.router.prompt.parse import listed_ids
    from warmpath.router.prompt.token_prompt import TokenPrompt
    from warmpath.scorer.match import NOTHING
    from warmpath.scorer.strategies import longest_prefix

Target = Callable[[bytes], None]
TOKENS = b"".join(struct.pack("<I", token) for token in range(33))
TAKEN = (*body.CHAT, "prompt", *body.COMMON)


def parts(data: bytes) -> Iterator[bytes]:
    """Yield the parts of an input."""
    while len(data) >= 2:
        size = int.from_bytes(data[:2], "big")
        yield data[2 : 2 + size]
        data = data[2 + size :]


def joined(*of: bytes) -> bytes:
    """Return an input of parts."""
    return b"".join(len(one).to_bytes(2, "big") + one for one in of)


def requests(runner: asyncio.Runner) -> Target:
    """Return the target that sends requests to a router's service."""
    service = AskedService(runner)

    def one_input(data: bytes) -> None:
        for method in service.methods:
            service.ask(method, data)
        as_protobuf(data)

    return one_input


def as_protobuf(data: bytes) -> None:
    """Compare our reading of a Score's bytes with protobuf's."""
    try:
        found = asyncio.run(parse(wire.ScoreRequest, data))
        ids = listed_ids(found.prompt.token_ids, "prompt.token_ids")
    except BadRequestError:
        return
    # Fields that we keep as bytes are not parsed by us; protobuf may refuse their content.
    whole = pb.ScoreRequest.FromString(data)
    assert ids == np.array(whole.prompt.token_ids.ids, "<u4").tobytes()
    whole.prompt.ClearField("token_ids")
    found.prompt.ClearField("token_ids")
    again = pb.ScoreRequest.FromString(found.SerializeToString())
    assert again == whole or again != again, (again, whole)  # noqa: PLR0124  NaN


def bodies(runner: asyncio.Runner) -> Target:
    """Return the target that reads bodies."""

    def one_input(data: bytes) -> None:
        for parse in (body.parse_chat, lambda raw, field: body.parse_completions(raw, field, 500)):
            try:
                found = runner.run(parse(data, "body"))
            except BadRequestError:
                found = None
            try:
                with taken_for_large():
                    again = runner.run(parse(data, "body"))
            except BadRequestError as error:
                again = None if "holds a number of more than" not in str(error) else found
            assert again == found
            if found is None:
                continue
            # Fields that do not matter are skipped, even if they are not valid text.
            plain = json.loads(data.decode(errors="replace"), strict=False)
            assert found.model == (plain.get("model") or "")
            assert found.cache_salt == (plain.get("cache_salt") or "")

    return one_input


@contextmanager
def taken_for_large() -> Iterator[None]:
    """Let bodies of any size be read as large ones are, in slices of few bytes.

    A string that is taken out is longer than each field's name.
    """
    with (
        patch.object(body_fields, "LARGE_BYTES", 0),
        patch.object(body_fields, "SLICE_BYTES", 64),
        patch.object(body_fields, "SHORT_BYTES", 64),
    ):
        yield


def watch(_: asyncio.Runner) -> Target:
    """Return the target that applies a publisher's messages."""

    def one_input(data: bytes) -> None:
        seen = []
        for index in (MemoryIndex(1 << 24), ArrayIndex(1 << 24)):
            ingest = new_ingest(index)
            ranks = [ingest.watch("p", number) for number in range(2)]
            watcher = Watcher(ranks, "", keyspace="k", credentials=None, retry_seconds=1.0)
            for raw in parts(data):
                try:
                    watcher._take(read_message(watch_pb.WatchResponse, raw))
                except (ProtocolError, ValueError) as error:
                    watcher.failed(f"refused: {error}")
            seen.append(shown(ingest))
        assert seen[0] == seen[1]

    return one_input


def new_ingest(index: MemoryIndex | ArrayIndex) -> Ingest:
    """Return an ingestion into an index."""
    return Ingest(index, hash_seed="", pending_bytes=1, stale_after=1e9, clock=lambda: 0.0)


def shown(ingest: Ingest) -> object:
    """Return a router's scores, matches and states of all ranks."""
    ingest.tick(1 << 16)
    check(ingest)
    prompt = TokenPrompt("m", TOKENS)
    ranks = list(ingest)
    matches = Scorer(ingest, "").matches(prompt, ranks, longest_prefix)
    held = sorted(
        (place.rank, place.tier, place.group, start, stop)
        for key in range(1, 6)
        for place, start, stop in ingest.match(Chain(0, b"", 16, 1, (), pack_words([key])))
    )
    told = [(rank.trust, rank.blocks(), rank.counts(), rank.blocks_in_use()) for rank in ranks]
    return [matches.get(rank, NOTHING).matched_tokens for rank in ranks], held, told


def records(_: asyncio.Runner) -> Target:
    """Return the target that reads records (names and values in turn) and logs (deltas)."""

    def one_input(data: bytes) -> None:
        found = list(parts(data))
        fields = dict(zip(found[::2], found[1::2], strict=False))
        try:
            record = read_record(fields)
        except BadRecordError:
            record = None
        ingest = new_ingest(MemoryIndex(1 << 24))
        ranks = [ingest.watch("p", number) for number in range(2)]
        for number, state in (record.states if record else {}).items():
            if number < len(ranks):
                ranks[number].take_state(state)
        for value in found:
            try:
                for delta in read_message(watch_pb.Deltas, value).deltas:
                    ranks[delta.state.rank].take_delta(delta)
            except (ValueError, KeyError, IndexError):
                continue
        shown(ingest)

    return one_input


KEYS = np.arange(1, SEGMENT + 9, dtype="<u8")
"""Keys of two segments."""


def _holders(start: int, stop: int, value: bytes | None) -> dict[int, set[int]]:
    """Return the slots that hold each of the keys from `start` up to `stop`, by a value.

    Like a look-up, it does not judge the records of other keys. Raises BadSegmentError.
    """
    if value is None:
        return {}
    begin, columns = segment_value.records_at(value)
    step = WORD_BYTES + segment_value.width_of(columns)
    records = [value[at : at + step] for at in range(begin, len(value), step)]
    wanted = {key.tobytes() for key in KEYS[start:stop]}
    records = [record for record in records if record[:WORD_BYTES] in wanted]
    if len({record[:WORD_BYTES] for record in records}) < len(records):
        raise TwiceError
    return holders(segment_value.decode(value[:begin] + b"".join(records))) if records else {}


class TwiceError(Exception):
    """A value has two records of one key, which no writer makes: a reader may use either of them."""


def segments(_: asyncio.Runner) -> Target:
    """Return the target that reads values: one for each field of a look-up, in its order."""
    fields = [segment for segment, _, _ in lookup.spans(KEYS.tobytes())]

    def one_input(data: bytes) -> None:
        found = list(parts(data))
        values = dict(zip(fields, found, strict=False))
        cut = lookup._parts(KEYS.tobytes(), values)
        stretches, bad = stretches_of(KEYS, cut)
        held = {(slot, at) for slot, start, stop in stretches for at in range(start, stop)}
        with suppress(TwiceError):
            for number, (start, stop, value) in enumerate(cut):
                try:
                    by_key = _holders(start, stop, value)
                except segment_value.BadSegmentError:
                    assert number in bad
                    continue
                assert number not in bad
                assert {one for one in held if start <= one[1] < stop} == {
                    (slot, key - 1) for key, slots in by_key.items() for slot in slots
                }
        for value in found:
            with suppress(segment_value.BadSegmentError):
                assert encode(segment_value.decode(value)) == value

    return one_input


def http2(_: asyncio.Runner) -> Target:
    """Return the target that attacks a connection."""
    return attack


TARGETS: dict[str, Callable[[asyncio.Runner], Target]] = {
    one.__name__: one for one in (requests, bodies, watch, records, segments, http2)
}


def seeds(target: str) -> list[bytes]:
    """Return the seeds of a target's corpus."""
    if target == "http2":
        return list(SEEDS)
    if target == "requests":
        prompt = pb.Prompt(model="m", token_ids_packed=TOKENS, lora="x", cache_salt="s")
        listed = pb.Prompt(model="m", token_ids=pb.TokenIds(ids=range(120, 200)))
        chat = pb.Prompt(model="m", chat_body=CHAT)
        load = pb.PodLoad(pod="a", running=1, kv_usage=0.5, age=1)
        item = pb.MultimodalItem(hash="h", offset=3, length=2)
        return [
            pb.ScoreRequest(prompt=prompt, pods=["a"], strategy="tiered", request_id=7).SerializeToString(),
            pb.ScoreRequest(prompt=listed, explain=True).SerializeToString(),
            pb.ScoreRequest(prompt=chat).SerializeToString(),
            pb.PickRequest(prompt=prompt, session_id="s", loads=[load], shadow=True).SerializeToString(),
            pb.PickRequest(prompt=listed, booking_id="name", disaggregated=True).SerializeToString(),
            pb.ReportRequest(booking_id="name", event=2, cached_tokens=5, loads=[load]).SerializeToString(),
            pb.ReportRequest(booking_id="a", event=1, also=[pb.Report(booking_id="b", event=2)]).SerializeToString(),
            pb.Prompt(model="m", text="t", multimodal=[item]).SerializeToString(),
            pb.ListDecisionsRequest(limit=3, model="m", pod="a").SerializeToString(),
        ]  # fmt: skip
    if target == "bodies":
        return [CHAT, COMPLETION, b'{"prompt": [1, 2, 3], "echo": true, "logprobs": 1}']
    if target == "segments":
        value = encode(pack({key: [7, 9] if key % 2 else [7] for key in range(1, 17)}))
        lone = encode(pack({SEGMENT + 1: range(20)}))
        return [joined(value, lone), joined(b"\2\0\0\0\5\0\0\0", lone)]
    keys = watch_pb.Keys(tier="gpu", keys=pack_words([1, 2]), segments=[1], counts=[2])
    group = watch_pb.Group(kind="full_attention", block_size=16)
    state = watch_pb.RankState(
        trust="exact", groups=[group], engine_sequence=3, copies=2, capacity=9
    )
    changes = [watch_pb.Change(added=keys), watch_pb.Change(gone=keys), watch_pb.Change()]
    deltas = [
        watch_pb.Delta(sequence=2 + at, state=state, changes=[one])
        for at, one in enumerate(changes)
    ]
    if target == "records":
        claim = {
            "owner": "o", "base": 1, "places": [[0, "gpu", 0]], "keyspace": "k", "model": "m", "ranks": 1,
        }  # fmt: skip
        fields = {
            b"token": b"5", b"claim": json.dumps(claim).encode(), b"applied": b"4", b"sound": b"7:120",
            b"audits": b"1", b"owner": b"o", b"reason": b"r", b"blocks:0": b'{"gpu": 2}',
            b"state:0": state.SerializeToString(),
            b"log": watch_pb.Deltas(deltas=deltas[:2]).SerializeToString(),
        }  # fmt: skip
        return [joined(*(part for field in fields.items() for part in field))]
    hello = watch_pb.Hello(epoch="e", snapshot=True, pod="p", ranks=2)
    part = watch_pb.SnapshotPart(tier="gpu", keys=pack_words([3, 4]))
    end = watch_pb.SnapshotEnd(sequence=1, ranks=[state])
    messages = [
        watch_pb.WatchResponse(hello=hello), watch_pb.WatchResponse(part=part),
        watch_pb.WatchResponse(end=end), *(watch_pb.WatchResponse(delta=one) for one in deltas),
    ]  # fmt: skip
    return [joined(*(one.SerializeToString() for one in messages))]


CHAT = json.dumps(
    {
        "model": "m", "cache_salt": "s", "truncate_prompt_tokens": 5, "add_generation_prompt": True,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "chat_template_kwargs": {"thinking": False}, "documents": [{"title": "t"}],
    }
).encode()  # fmt: skip
COMPLETION = b'{"model": "m", "prompt": "a text", "extra_key": "k", "add_special_tokens": false}'


def main() -> None:
    """Fuzz one target for some seconds."""
    name, seconds = asked(__doc__, TARGETS)
    warm_up(ArrayIndex(1 << 20))
    corpus = seeds(name)
    with asyncio.Runner() as runner:
        target = TARGETS[name](runner)
        # Numba compiles a function at its first call; that must not count as time of an input.
        for seed in corpus:
            target(seed)
        fuzz(name, seconds, partial(_write, corpus), target)


def _write(corpus: list[bytes], folder: Path) -> None:
    for number, seed in enumerate(corpus):
        (folder / str(number)).write_bytes(seed)


if __name__ == "__main__":
    main()
