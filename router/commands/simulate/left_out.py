"""Lines of a file that are left out, since they are wrong."""

MOST_SHARE = 0.05
"""The largest share of bad lines with which the others still stand for the traffic."""
MOST_TOLD = 3
"""How many of them are told."""


class LeftOut:
    """Counts bad lines and keeps the first reasons, which quote no prompt."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[str] = []

    def add(self, number: int, problem: str) -> None:
        """Count the line of this number."""
        self.count += 1
        if len(self.first) < MOST_TOLD:
            self.first.append(f"line {number}: {problem}")

    def check(self, good: int, *notes: str) -> None:
        """Raise ValueError, with the notes, if too many lines were bad beside this many good ones."""
        lines = self.count + good
        if self.count <= MOST_SHARE * lines:
            return
        share = f"{self.count} of {lines} lines are bad, more than {MOST_SHARE:.0%}"
        raise ValueError("; ".join([*self.first, *([share] if lines > 1 else []), *notes]))
