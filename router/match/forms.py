"""Groups ranks by the form of their blocks; the groups are cached until a rank's layout changes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from warmpath.indexer.believed import Believed
from warmpath.indexer.engines.cache_groups import Layout, Lookahead
from warmpath.indexer.index.slot import RankName
from warmpath.indexer.rank import Rank
from warmpath.indexer.ranks import Ingest

BlockForm = tuple[int, Lookahead]
"""The form of a rank's blocks (`Layout.form`): tokens in each, and whether its key also covers the next
token."""

UNKNOWN: BlockForm = (0, Lookahead.NONE)

_LAYOUT: Callable[[Rank], Layout] = attrgetter("layout")

Layouts = Mapping[Rank, Layout]
"""Ranks in the order given, each with its layout."""


@dataclass(frozen=True, slots=True)
class Forms:
    """Ranks grouped by form."""

    known: Mapping[BlockForm, Layouts] = field(default_factory=dict)
    unknown: Layouts = field(default_factory=dict)
    """Ranks whose block size no event has shown yet."""
    usual: BlockForm | None = None
    """The form of most ranks; None if none is known."""
    has_prefix: bool = True
    """Whether all ranks need a prompt's blocks from the first on."""


MOST_LIVES = 100_000
"""Remembered ranks, removed ones included, beyond which all are forgotten at the next call."""


class KeptForms:
    """Caches the groups of the last ranks, since the next call mostly has the same ranks.

    It also drops the beliefs about ranks whose engine has begun a new life with an empty cache.
    """

    def __init__(self, ingest: Ingest, believed: Believed | None) -> None:
        self._ingest = ingest
        self._believed = believed
        self._ranks: list[Rank] = []
        self._layouts: list[Layout] = []
        self._forms = Forms()
        self._lives: dict[RankName, int] = {}
        self._changes = 0
        """`Ingest.life_changes` at the last call."""

    def of(self, ranks: Sequence[Rank]) -> Forms:
        # Read before the lives are: a change in between is then seen by the next call.
        changes = self._ingest.life_changes
        # Layouts are immutable, so equal ones are mostly the same objects and compare quickly.
        layouts, are_others = [*map(_LAYOUT, ranks)], [*ranks] != self._ranks
        if self._believed is not None and (are_others or changes != self._changes):
            self._changes = changes
            self._forget_old_lives(ranks, self._believed)
        if are_others or layouts != self._layouts:
            self._ranks, self._layouts = [*ranks], layouts
            self._forms = _forms_of(ranks, layouts)
        return self._forms

    def _forget_old_lives(self, ranks: Sequence[Rank], believed: Believed) -> None:
        names = [RankName(rank.pod, rank.number) for rank in ranks]
        if len(self._lives) > MOST_LIVES:
            self._lives.clear()
        lives = self._lives
        for name, life in zip(names, self._ingest.lives(names), strict=True):
            if lives.get(name) != life:
                if name in lives:
                    believed.forget(*name)
                lives[name] = life


def _forms_of(ranks: Sequence[Rank], layouts: Sequence[Layout]) -> Forms:
    known: dict[BlockForm, dict[Rank, Layout]] = {}
    unknown: dict[Rank, Layout] = {}
    for rank, layout in zip(ranks, layouts, strict=True):
        form = layout.form
        alike = known.setdefault(form, {}) if form[0] else unknown
        alike[rank] = layout
    usual = max(known, key=lambda form: len(known[form]), default=None)
    return Forms(known, unknown, usual, all(layout.has_prefix for layout in layouts))
