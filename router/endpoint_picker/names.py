"""The headers that the picker reads, writes and removes."""

from dataclasses import dataclass
from itertools import filterfalse

from warmpath.router.config.schema import PickerHeadersTable
from warmpath.router.endpoint_picker.protocol import DESTINATION, PICKERS_OWN


@dataclass(frozen=True, slots=True)
class HeaderNames:
    """The configured names of headers, and those of the protocol."""

    ours: PickerHeadersTable
    in_request: tuple[str, ...]
    """Headers that a client may not send to an engine; DESTINATION, which a pick replaces, is first."""
    in_response: tuple[str, ...]
    """Headers that an engine may not send to a client: the picker's own headers of a response."""

    def of_request(self, put: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
        """Return the headers to remove from a request whose headers `put` are replaced."""
        return tuple(filterfalse(dict(put).__contains__, self.in_request))

    def of_response(self, put: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
        """Return the headers to remove from a response whose headers `put` are replaced."""
        return tuple(filterfalse(dict(put).__contains__, self.in_response))


def names_of(ours: PickerHeadersTable) -> HeaderNames:
    """Return the names of a configuration."""
    in_response = tuple(
        name for name in (ours.pod, ours.cached_tokens, ours.saved_seconds, ours.reason) if name
    )
    asked = (ours.session, *ours.rewrite, ours.rank, ours.priority, ours.tenant, ours.prefill)
    others = (*PICKERS_OWN, *in_response, *asked)
    in_request = tuple(dict.fromkeys(name for name in others if name))
    assert in_request[0] == DESTINATION
    return HeaderNames(ours, in_request, in_response)
