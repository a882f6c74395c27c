"""Random prompts as routers see them: shared heads, chats that go on, repeats cut near a page's edge."""

from dataclasses import dataclass, field
from random import Random

VOCABULARY = 1000


@dataclass(frozen=True)
class Space:
    """The fields of a request that keep its pages apart from those of others; empty where it has none."""

    lora: str = ""
    cache_salt: str = ""
    extra_key: str = ""


@dataclass
class Prompts:
    """Makes prompts of at most `longest` tokens for a cache with pages of `page` tokens."""

    rng: Random
    page: int
    longest: int
    salts: tuple[str, ...] = ()
    loras: tuple[str, ...] = ()
    extra_keys: tuple[str, ...] = ()
    chats: list[tuple[list[int], Space]] = field(default_factory=list)
    """Whole sequences that ended, the last 8; a later prompt may go on from one."""
    _seen: list[tuple[list[int], Space]] = field(default_factory=list)
    _heads: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for _ in range(5):
            size = self.rng.randint(1, 6) * self.page + self.rng.randrange(self.page)
            self._heads.append(self.ids(size))

    def ids(self, count: int) -> list[int]:
        return [self.rng.randrange(VOCABULARY) for _ in range(count)]

    def ended(self, ids: list[int], space: Space) -> None:
        if self.rng.random() < 0.5:
            self.chats = [*self.chats[-7:], (ids, space)]

    def next(self) -> tuple[list[int], Space]:
        rng, page = self.rng, self.page
        space = Space(
            lora=self._one_of(self.loras),
            cache_salt=self._one_of(self.salts),
            extra_key=self._one_of(self.extra_keys),
        )
        if self._seen and rng.random() < 0.15:
            ids, space = rng.choice(self._seen)
            edge = len(ids) // page * page
            return ids[: rng.choice([len(ids), max(1, edge + rng.choice([0, 1, 2]))])], space
        kind = rng.random()
        if kind < 0.35 and self.chats:
            chat = rng.choice(self.chats)
            space = chat[1]
            ids = chat[0] + self.ids(rng.randint(1, 3 * page))
            if len(ids) > self.longest:
                ids = self.ids(page)
                self.chats.remove(chat)
        elif kind < 0.75:
            more = rng.choice([0, 1, page - 1, page, page + 1, rng.randint(1, 4 * page)])
            ids = rng.choice(self._heads) + self.ids(more)
        else:
            ids = self.ids(rng.choice([1, 2, page, page + 1, 2 * page, rng.randint(1, 6 * page)]))
        self._seen = [*self._seen[-11:], (ids, space)]
        return ids, space

    def _one_of(self, names: tuple[str, ...]) -> str:
        return self.rng.choice(names) if names and self.rng.random() < 0.3 else ""
