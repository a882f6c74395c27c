"""Tells what warmpath writes from what it cannot have written: keys of another type, absurd numbers.

Such keys come from commands by hand or from other programs on the same Redis. Whoever meets one removes
it: it is named as warmpath's keys are, and nobody can read it. The writers then miss it, as they
miss whatever Redis loses, and write everything anew.
"""

from collections.abc import Iterator

from warmpath.indexer.shared.layout.names import KeyNames, is_credible
from warmpath.indexer.shared.layout.record import BadRecordError, fields_of, read_record
from warmpath.indexer.shared.redis.command import Call, Command, CommandRefusedError, Reply, script

_HASH, _STRING, _STREAM = ("HLEN", "hash"), ("GET", "string"), ("XLEN", "stream")
_ENDINGS = {
    ":log": _STREAM,
    ":reports": _STREAM,
    ":fence": _STRING,
    ":load": _STRING,
    ":sweeper": _STRING,
}


def ask_type(key: str) -> Command:
    """Return a command that Redis refuses where the key is not of the type that warmpath gives it."""
    return Command((_type_of(key)[0], key))


def heal_call(*keys: str) -> Call:
    """Return the call that removes those of the keys that are not of the type that warmpath gives them.

    The keys have one hash tag. The call replies the removed keys' places in the call, from 1 on.
    """
    return Call(script("heal"), keys, tuple(_type_of(key)[0] for key in keys))


def is_wrong_type(reply: Reply) -> bool:
    """Return whether Redis refused a command because its key is of another type."""
    return isinstance(reply, CommandRefusedError) and "WRONGTYPE" in str(reply)


def wrong_type(key: str) -> str:
    """Return the words for a key of another type."""
    return f"{key} is no {_type_of(key)[1]}, so warmpath cannot have written it"


def _type_of(key: str) -> tuple[str, str]:
    return next((kind for ending, kind in _ENDINGS.items() if key.endswith(ending)), _HASH)


def ask_pod(names: KeyNames, pod: str) -> list[Command]:
    """Return the commands that read what `pod_problems` looks at."""
    record = names.record(pod)
    keys = ("HGETALL", record), ("PTTL", record), ("GET", names.fence(pod))
    return [Command(words) for words in keys]


def pod_problems(
    names: KeyNames, pod: str, fields: Reply, left: Reply, fence: Reply
) -> Iterator[tuple[str, str]]:
    """Yield a pod's keys that no writer can have written, and why, by the replies to `ask_pod`.

    A reply of None is not judged. A writer's record always expires.
    """
    if fields is not None and left is not None:
        problem = ""
        try:
            if read_record(fields_of(fields)) is not None and left == -1:
                problem = "the record never expires"
        except BadRecordError as error:
            problem = str(error)
        if problem:
            yield names.record(pod), problem
    if fence is not None and not is_credible(fence):
        yield names.fence(pod), f"{fence[:40]!r} is not the number of a claim"
