"""The queue's classes of requests, by name; each caller may name some of them."""

from collections.abc import Collection, Sequence

from warmpath.router.prompt.bad_request import BadRequestError


class Classes:
    """The configured classes, the lowest first, and the one of requests that name none."""

    def __init__(self, names: Sequence[str], usual: str) -> None:
        self.names = names
        self._places = {name: place for place, name in enumerate(names)}
        self._usual = self._places[usual]

    def place(self, name: str, may: Collection[str] | None) -> int:
        """Return the position of a request's class; a higher one goes first. No name: the usual class.

        `may` are the classes that the caller may name besides the usual one; None: all. Raises
        BadRequestError.
        """
        if not name:
            return self._usual
        place = self._places.get(name)
        if place is None or not self._is_open(place, name, may):
            allowed = [one for at, one in enumerate(self.names) if self._is_open(at, one, may)]
            raise BadRequestError(
                "priority", f"is {name!r}; this caller may name {', '.join(allowed)}"
            )
        return place

    def find(self, name: str) -> int:
        """Return the position of a class; that of the usual one if there is no such class."""
        return self._places.get(name, self._usual)

    def may_name(self, name: str, may: Collection[str] | None) -> bool:
        """Return whether a caller may name a class, which may be unknown."""
        place = self._places.get(name)
        return place is not None and self._is_open(place, name, may)

    def _is_open(self, place: int, name: str, may: Collection[str] | None) -> bool:
        return may is None or place == self._usual or name in may
