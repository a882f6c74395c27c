"""Encodes live texts a second time, with `tokenizers`, where `fastokens` has encoded them.

At most one text every `PAUSE_SECONDS`, one at a time, in a thread, and only while no text waits for one.
One difference, and the tokenizer encodes with `tokenizers` alone until the router ends.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from warmpath.prefixstore.tokenizers.tokenizer import FolderTokenizer
from warmpath.prefixstore.workers import Waiting, Workers, WorkFailedError

log = logging.getLogger(__name__)

PAUSE_SECONDS = 2.0
"""A text takes `tokenizers` up to some 20 ms of a thread: a hundredth of a core at most."""


class Rechecks:
    """Compares both encoders. In one event loop; `forget` drops what is stored of a tokenizer.

    `clock` returns seconds.
    """

    def __init__(
        self,
        workers: Workers,
        waiting: Waiting,
        forget: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self.made = 0
        """Texts that were compared."""
        self.disagreements: dict[str, str] = {}
        """By the tokenizer's id, where `fastokens` gave other ids than `tokenizers`; quotes no text."""
        self._workers = workers
        self._waiting = waiting
        self._forget = forget
        self._clock = clock
        self._next = clock()
        self._task: asyncio.Task[None] | None = None

    def is_due(self) -> bool:
        """Return whether `offer` would take a text."""
        return self._clock() >= self._next and self._task is None and not self._waiting.count

    def met(self, tokenizer_id: str, tokenizer: FolderTokenizer) -> None:
        """Note a tokenizer's first use: its own disagreement, or an earlier one of its id."""
        if tokenizer.disagreement:
            self._differs(tokenizer_id, tokenizer.disagreement)
        elif tokenizer_id in self.disagreements:
            tokenizer.stay_slow(self.disagreements[tokenizer_id])

    def offer(
        self,
        tokenizer_id: str,
        tokenizer: FolderTokenizer,
        part: bytes,
        ids: bytes,
        *,
        at_start: bool,
    ) -> None:
        """Compare `ids`, those of a part of a text, in the background. Call if it `is_due`."""
        self._next = self._clock() + PAUSE_SECONDS
        work = partial(tokenizer.differs, part, ids, at_start=at_start)
        self._task = asyncio.create_task(self._compare(tokenizer_id, tokenizer, work))

    async def _compare(
        self, tokenizer_id: str, tokenizer: FolderTokenizer, differs: Callable[[], bool]
    ) -> None:
        try:
            found = await self._workers.run(differs)
        except WorkFailedError:
            return  # `tokenizers` hangs or crashes on the text, so there is nothing to compare
        finally:
            self._task = None
        self.made += 1
        if found:
            where = f"other ids for a live text, the {self.made}th that was compared"
            tokenizer.stay_slow(where)
            self._differs(tokenizer_id, where)
            self._forget(tokenizer_id)

    def _differs(self, tokenizer_id: str, where: str) -> None:
        self.disagreements[tokenizer_id] = where
        log.error(
            "model %r: fastokens and tokenizers disagree: %s; tokenizers alone encodes its texts now",
            tokenizer_id, where,
        )  # fmt: skip

    def under_way(self) -> Sequence[asyncio.Task[None]]:
        """Return the task of the comparison under way, if any."""
        return [self._task] if self._task else []
