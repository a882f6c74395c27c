"""Tells what warmpath writes from what it cannot have written: keys of another type, absurd numbers.

Such keys come from commands by hand or from other programs on the same Redis. Whoever meets one removes
it: it is named as warmpath's keys are, and nobody can read it. The writers then miss it, as they
miss whatever Redis loses, and write everything anew.
"""

from warmpath.indexer.shared.redis.command import Call, Command, CommandRefusedError, Reply, script

MOST_DIGITS = 12
"""The most digits of a number that a writer can have reached: claims and writes are counted one by one,
so even one each millisecond takes 30 years to the first number with more. `claim.lua`, `fence.lua` and
`outlive.lua` know it too: a higher number there counts as none."""

_HASH, _STRING, _STREAM = ("HLEN", "hash"), ("GET", "string"), ("XLEN", "stream")
_ENDINGS = {
    ":log": _STREAM,
    ":reports": _STREAM,
    ":fence": _STRING,
    ":load": _STRING,
    ":sweeper": _STRING,
}


def is_credible(digits: bytes) -> bool:
    """Return whether these are the digits of a number that a writer can have reached."""
    return digits.isdigit() and len(digits) <= MOST_DIGITS


def ask_type(key: str) -> Command:
    """Return the command that Redis refuses where this key is of another type than warmpath's."""
    return Command((_type_of(key)[0], key))


def heal_call(*keys: str) -> Call:
    """Return the call that removes those of the keys that are of another type than warmpath's.

    The keys have one hash tag. It replies the removed keys' places in the call, from 1 on.
    """
    return Call(script("heal"), keys, tuple(_type_of(key)[0] for key in keys))


def is_wrong_type(reply: Reply) -> bool:
    """Return whether Redis refused a command because its key is of another type."""
    return isinstance(reply, CommandRefusedError) and "WRONGTYPE" in str(reply)


def wrong_type(key: str) -> str:
    """Return the words for a key of another type."""
    return f"{key} is no {_type_of(key)[1]}, so warmpath cannot have written it"


def _type_of(key: str) -> tuple[str, str]:
    """Return the command that asks for the type of a key (`names.KeyNames`), and the type's name."""
    return next((kind for ending, kind in _ENDINGS.items() if key.endswith(ending)), _HASH)
