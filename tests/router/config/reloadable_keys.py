"""The keys that a running router takes over."""

from collections.abc import Iterator

import msgspec

from warmpath.router.config.schema import Config, Table
from warmpath.router.reload import is_reloadable


def reloadable_keys(table: type[Table] = Config, at: str = "") -> Iterator[str]:
    """Yield all reloadable keys, dotted as in `limits.tokenize-seconds`."""
    for field in msgspec.structs.fields(table):
        if is_reloadable(field):
            yield at + field.encode_name
        elif isinstance(field.type, type) and issubclass(field.type, Table):
            yield from reloadable_keys(field.type, f"{at}{field.encode_name}.")
