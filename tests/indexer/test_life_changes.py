"""Whoever keeps ranks' lives sees by one number that none has changed."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.examples import examples
from tests.indexer.followed import new_ingest, source
from warmpath.indexer.follow.stream_source import RankIngest
from warmpath.indexer.index.slot import RankName
from warmpath.indexer.watch.watched_source import WatchedRank

NAMES = [("p", 0), ("p", 1), ("q", 0)]


class AnyLives(RuleBasedStateMachine):
    """Ranks come, begin anew and go."""

    def __init__(self) -> None:
        super().__init__()
        self.ingest = new_ingest()
        self.seen = self.ingest.life_changes, self.ingest.lives(NAMES)

    @rule(name=st.sampled_from(NAMES), how=st.sampled_from(["follow", "watch", "blind"]))
    def comes(self, name: RankName, how: str) -> None:
        if self.ingest.rank(*name) is None:
            if how == "follow":
                self.ingest.add(source(name[0], rank=name[1]))
            elif how == "watch":
                self.ingest.watch(*name)
            else:
                self.ingest.add_blind(*name)

    @rule(name=st.sampled_from(NAMES), keep=st.booleans())
    def begins_anew(self, name: RankName, keep: bool) -> None:
        rank = self.ingest.rank(*name)
        if isinstance(rank, RankIngest):
            rank.connected()
            rank.failed("a bug")
        elif isinstance(rank, WatchedRank):
            rank.begin_snapshot(keep=keep)

    @rule(name=st.sampled_from(NAMES))
    def goes(self, name: RankName) -> None:
        if self.ingest.rank(*name) is not None:
            self.ingest.remove(*name)

    @invariant()
    def no_life_changes_uncounted(self) -> None:
        changes, lives = self.ingest.life_changes, self.ingest.lives(NAMES)
        assert changes >= self.seen[0]
        assert changes > self.seen[0] or lives == self.seen[1]
        self.seen = changes, lives


AnyLives.TestCase.settings = settings(max_examples=examples(100), deadline=None)
TestAnyLives = AnyLives.TestCase
