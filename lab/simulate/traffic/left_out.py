"""Lines of a file that are left out, since they are wrong."""

MOST_SHARE = 0.05
"""The largest share of bad lines with which the others still stand for the traffic."""
MOST_TOLD = 3
"""How many of them are told."""


class LeftOut:
    """Counts bad lines and keeps the first reasons, which quote no prompt."""

    def __init__(self) -> None:
        self.count = 0
        self._first: list[tuple[int, str]] = []

    @property
    def first(self) -> list[str]:
        """The first of them: each one's number, and why it is left out."""
        return [f"line {number}: {problem}" for number, problem in self._first]

    def add(self, number: int, problem: str) -> None:
        """Count the line of this number."""
        self.count += 1
        self._first = sorted([*self._first, (number, problem)])[:MOST_TOLD]

    def check(self, good: int, *notes: str) -> None:
        """Raise ValueError, with the notes, if too many lines were bad beside this many good ones."""
        lines = self.count + good
        if self.count <= MOST_SHARE * lines:
            return
        share = f"{self.count} of {lines} lines are bad, more than {MOST_SHARE:.0%}"
        raise ValueError("; ".join([*self.first, *([share] if lines > 1 else []), *notes]))
