"""A store in memory, with its own clock, for the commands by which routers share bookings."""

from collections.abc import Sequence

from warmpath.indexer.shared.redis.command import Call, Command, Reply, UnreachableError
from warmpath.router.peers.siblings import Board, words_of

AWAY = UnreachableError("nobody answers")


class FakeStore:
    """One server. `now` is its clock, seconds."""

    def __init__(self) -> None:
        self.now = 5000.0
        self.is_away = False
        """Whether commands are not carried out."""
        self.loses_replies = False
        """Whether commands are carried out, but their replies are lost."""
        self.clear()

    def run(self, asked: Sequence[Command | Call]) -> list[Reply]:
        """Carry out commands; return the reply to each."""
        if self.is_away:
            return [AWAY] * len(asked)
        replies = self._board.run(list(map(words_of, asked)))
        return [AWAY] * len(asked) if self.loses_replies else replies

    def keys(self) -> list[str]:
        """Return the keys that there are."""
        return self._board.expire()

    def clear(self) -> None:
        """Lose everything, as a server without persistence does when it is started again."""
        self._board = Board(lambda: self.now)
