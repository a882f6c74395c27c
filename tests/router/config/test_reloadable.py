"""Which keys a running router takes over from a changed file."""

from collections.abc import Iterator

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from warmpath.router.config.read import parse
from warmpath.router.config.schema import Config, Table
from warmpath.router.reload import differing, is_reloadable, reloaded


def reloadable_keys(table: type[Table] = Config, at: str = "") -> Iterator[str]:
    """Yield all reloadable keys, dotted as in `limits.tokenize-seconds`."""
    for field in msgspec.structs.fields(table):
        if is_reloadable(field):
            yield at + field.encode_name
        elif isinstance(field.type, type) and issubclass(field.type, Table):
            yield from reloadable_keys(field.type, f"{at}{field.encode_name}.")


VALUES = {
    "server.ready": ("[]", '["pods"]', '["index", "coverage"]'),
    "server.processes": ("1", "2"),
    "server.http2.max-streams": ("5", "6"),
    "limits.tokenize-seconds": ("1", "2"),
    "limits.wait-seconds": ("1", "2"),
    "pick.options": ("{}", "{kappa = 3}"),
    "pick.queue": ('"off"', '"on"'),
    "queue.classes": ('["normal"]', '["normal", "high"]'),
}
"""Keys, each with values for it."""
FIELDS = {key: tuple(key.replace("-", "_").split(".")) for key in VALUES}


def config(values: dict[str, str]) -> Config:
    tables: dict[str, list[str]] = {}
    for key, value in values.items():
        table, _, name = key.rpartition(".")
        tables.setdefault(table, []).append(f"{name} = {value}")
    text = "\n".join(f"[{table}]\n" + "\n".join(lines) for table, lines in tables.items())
    return parse(f'{text}\n[[models]]\nname = "m"\n', "test")


def value(of: Config, key: str) -> object:
    found: object = of
    for field in FIELDS[key]:
        found = getattr(found, field)
    return found


VALUED = st.fixed_dictionaries({key: st.sampled_from(given) for key, given in VALUES.items()})


@settings(max_examples=examples(300), deadline=None)
@given(before=VALUED, after=VALUED)
def test_reloadable_keys_are_taken_over_and_no_others_whatever_differs(
    before: dict[str, str], after: dict[str, str]
) -> None:
    old, new = config(before), config(after)
    known = set(reloadable_keys())
    expected = {key: key in known for key in VALUES if before[key] != after[key]}
    assert dict(differing(old, new)) == expected
    merged = reloaded(old, new)
    for key in VALUES:
        assert value(merged, key) == value(new if key in known else old, key)
    assert not any(is_reloadable for _, is_reloadable in differing(merged, new))
    assert all(is_reloadable for _, is_reloadable in differing(old, merged))


def test_tables_that_repeat_are_named_as_a_whole() -> None:
    old = parse('[[models]]\nname = "m"\n', "old")
    more = '[[pods]]\nid = "a"\nmodel = "m"\naddress = "h:1"\n'
    new = parse(f'[[models]]\nname = "m"\naliases = ["n"]\n{more}', "new")
    assert dict(differing(old, new)) == {"models": False, "pods": True}
