"""The headers that the picker reads, writes and removes."""

from dataclasses import dataclass

from router.config.schema import PickerHeaders
from router.endpoint_picker.protocol import DESTINATION, PICKERS_OWN


@dataclass(frozen=True, slots=True)
class Names:
    """The configured names of headers, and those of the protocol."""

    ours: PickerHeaders
    removed: tuple[str, ...]
    """What no client may send on to an engine; DESTINATION, which a pick replaces, is the first."""
    told: tuple[str, ...]
    """What no engine may tell a client: the headers of a response that are ours."""

    def of_request(self, put: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
        """Return the headers to remove from a request whose headers `put` are replaced."""
        replaced = [name for name, _ in put]
        return tuple(name for name in self.removed if name not in replaced)

    def of_response(self, put: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
        """Return the headers to remove from a response whose headers `put` are replaced."""
        replaced = [name for name, _ in put]
        return tuple(name for name in self.told if name not in replaced)


def names_of(ours: PickerHeaders) -> Names:
    """Return the names of a configuration."""
    told = tuple(
        name for name in (ours.pod, ours.cached_tokens, ours.saved_seconds, ours.reason) if name
    )
    others = (*PICKERS_OWN, *told, ours.session, *ours.rewrite, ours.rank)
    removed = tuple(dict.fromkeys(name for name in others if name))
    assert removed[0] == DESTINATION
    return Names(ours, removed, told)
