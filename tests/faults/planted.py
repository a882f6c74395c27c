"""Damage that somebody does by hand to each kind of key under the prefix."""

from collections.abc import Iterator

from warmpath.indexer.shared.layout.names import BORN, WRITES, KeyNames, checkpoint

Words = tuple[str | bytes | int, ...]
Damage = tuple[Words, ...]
"""Commands to send."""

ABSURD = ("9007199254740992", "999999999999", "nan")
"""What no number of a pod's claims is."""


def wrong_types(key: str, *, hash_too: bool) -> Iterator[Damage]:
    """Yield what puts another type in the place of a key."""
    kinds: list[Words] = [("HSET", "x", "y") if hash_too else ("SET", "x"), ("RPUSH", "x")]
    # It is moved to the key, since a writer may write there between two commands.
    aside = f"{key} aside"
    for command, *words in kinds:
        yield (command, aside, *words), ("RENAME", aside, key)


def of_shared_keys(names: KeyNames) -> Iterator[Damage]:
    """Yield damage to the keys that belong to no pod."""
    for key in (names.schema, names.pods, names.routers):
        yield from wrong_types(key, hash_too=False)
    yield from wrong_types(names.sweeper, hash_too=True)
    yield (("SET", names.sweeper, "x"),)
    yield (("SET", names.sweeper, "x", "PX", 10**12),)
    yield (("HSET", names.schema, "schema", "x"),)
    yield (("HDEL", names.schema, "schema"),)
    for value in ABSURD:
        yield (("HSET", names.pods, "a", value, "gone", value, b"\xff", value),)


def of_a_pod(names: KeyNames, pod: str) -> Iterator[Damage]:
    """Yield damage to a pod's record, log and fence, and to its checkpoints."""
    record, fence = names.record(pod), names.fence(pod)
    yield from wrong_types(record, hash_too=False)
    yield from wrong_types(names.log(pod), hash_too=True)
    yield from wrong_types(fence, hash_too=True)
    for value in ABSURD:
        yield (("SET", fence, value),)
        for field in ("token", "applied", "audits", "building"):
            yield (("HSET", record, field, value),)
        yield (("HSET", names.bucket(3), checkpoint(pod), f"{value}:0"),)
        yield (("HSET", names.bucket(4), checkpoint(pod), f"1:{value}"),)
        yield tuple(("HSET", names.bucket(n), checkpoint(pod), f"{value}:1") for n in range(64))
    everywhere = [("HSET", names.bucket(n), checkpoint(pod), f"{10**15 - 1}:0") for n in range(64)]
    yield ("SET", fence, 2**53), ("HSET", record, "token", 2**53), *everywhere
    for field in ("claim", "state:0", "blocks:0", "reason", "state:x", "owner"):
        yield (("HSET", record, field, b"\xff{"),)
    yield (("PERSIST", record),)


def of_buckets(names: KeyNames) -> Iterator[Damage]:
    """Yield damage to a bucket."""
    bucket = names.bucket(5)
    segment = (5).to_bytes(8, "little")
    yield from wrong_types(bucket, hash_too=False)
    for value in (b"", b"x", b"\x01\x00\x01\x00short", b"\x02\x00\x00\x00", b"\x03" * 40):
        yield (("HSET", bucket, segment, value),)
        yield (("HSET", bucket, 2 * segment, value),)
    yield (("HSET", bucket, "strange", "x", b"checkpoint of pod/\xff", "x"),)
    yield (("HSET", bucket, BORN, "x"),)
    yield (("HDEL", bucket, BORN),)
    yield (("HDEL", bucket, WRITES),)
    for value in ABSURD:
        yield (("HSET", bucket, WRITES, value),)
