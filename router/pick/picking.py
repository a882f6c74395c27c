"""Builds the parts of picking, the same for the service, `warmpath simulate`, tests and benchmarks.

The differences between these are arguments: the index of believed blocks, booking ids, randomness,
witnesses.
"""

import math
from collections.abc import Callable, Sequence
from random import Random

from warmpath.indexer.believed import Believed
from warmpath.indexer.index.contract import Index
from warmpath.router.config import schema as config
from warmpath.router.load.bookings import Bookings
from warmpath.router.load.engine_metrics import Observed
from warmpath.router.load.overdue import Precedence
from warmpath.router.load.table import LoadTable
from warmpath.router.match.match import Scorer
from warmpath.router.peers.exchange import PeerBookings
from warmpath.router.pick.assign import Assigner
from warmpath.router.pick.calibration import Calibration
from warmpath.router.pick.pick import Witness
from warmpath.router.pick.picker import Picker
from warmpath.router.pick.weigh import Weigher
from warmpath.router.pick.working_set import WorkingSets
from warmpath.router.pods.table import Pod
from warmpath.router.tracing.steps import NO_STEPS, Steps
from warmpath.scorer.prefill import PrefillModel

BELIEVED_BYTES = 100
"""Bytes of the index that one believed block takes, estimated on the high side."""
LEAST_BELIEVED_BYTES = 16 << 20


def believed_bytes(pick: config.PickTable) -> int:
    """Return the size limit, in bytes, of the index in which the beliefs' blocks are kept."""
    return max(LEAST_BELIEVED_BYTES, BELIEVED_BYTES * pick.max_believed_blocks)


def prefill_model(pick: config.PickTable) -> PrefillModel:
    """Return the cost model of a configuration."""
    return PrefillModel(
        pick.prefill_base_seconds,
        pick.prefill_token_seconds,
        pick.prefill_context_seconds,
        per_pulled_token=pick.pull_token_seconds or math.inf,
    )


def precedence_of(queue: config.QueueTable) -> Precedence:
    """Return the configured order of prompts, kept by the queue or by engines."""
    return Precedence(queue.prefill_times, queue.passed_seconds)


class Picking:
    """The picker and the parts that it uses.

    `index` stores the blocks of the beliefs. `scorer` makes the scorer, given what is `believed` and the
    prompts that other routers have sent `elsewhere`. `share` makes the part that shares bookings with
    them. `batch` returns the number of a rank's last batch of events, None if there is none.
    """

    def __init__(
        self,
        pick: config.PickTable,
        booking: config.BookingTable,
        queue: config.QueueTable,
        *,
        index: Index,
        scorer: Callable[..., Scorer],
        new_id: Callable[[], str],
        rng: Random,
        witnesses: Sequence[Witness] = (),
        beliefs: type[Believed] = Believed,
        share: Callable[[Bookings, Believed], PeerBookings] | None = None,
        batch: Callable[[str, int], int | None] = lambda *_: None,
        steps: Steps = NO_STEPS,
    ) -> None:
        self.bookings = Bookings(
            expire_after=booking.expire_seconds,
            # Where prefill and decoding are apart a pick is booked twice.
            most=2 * booking.max_bookings,
            batch=batch,
        )
        self.bookings.overdue.precedence = precedence_of(queue)
        self.believed = beliefs(
            index, max_blocks=pick.max_believed_blocks, assumed_seconds=pick.assumed_seconds
        )
        self.peers = share(self.bookings, self.believed) if share else None
        self.loads = LoadTable(
            self.bookings,
            stale_seconds=pick.load_stale_seconds,
            others=self.peers.received if self.peers else None,
        )
        self.calibration = Calibration(pick.prefill_base_seconds)
        self.working = WorkingSets()
        self.scorer = scorer(
            believed=self.believed, elsewhere=self.peers.received.marks if self.peers else None
        )
        prefill = prefill_model(pick)
        self._weigher = Weigher(
            self.scorer, self.loads, self.calibration, self.working, pick, prefill=prefill, rng=rng
        )
        self.picker = Picker(
            self._weigher,
            Assigner(
                self.bookings,
                self.believed,
                self.calibration,
                self.scorer,
                prefill,
                working=self.working,
            ),
            self.scorer,
            booking,
            new_id=new_id,
            witnesses=witnesses,
            steps=steps,
        )
        self.on_room: Callable[[], None] = lambda: None
        """Called after an event, other than a report, that may give a rank room."""

    def use(self, pick: config.PickTable, queue: config.QueueTable) -> None:
        """Take a configuration's policy, its options and the order of prompts from now on."""
        self._weigher.use(pick)
        self.bookings.overdue.precedence = precedence_of(queue)

    def observe(self, pod: str, rank: int, observed: Observed) -> None:
        self.loads.observe(pod, rank, observed)
        self.on_room()

    def engine_ended(self, pod: Pod) -> None:
        """Drop the beliefs about a pod whose engine has ended, and wait for none of its answers."""
        for rank in pod.ranks:
            self.believed.forget(pod.id, rank.number)
            self.working.forget(pod.id, rank.number)
            self.bookings.engine_ended(pod.id, rank.number)
        self.on_room()

    def forget(self, pod: Pod) -> None:
        """Drop everything that is kept about a removed pod."""
        for rank in pod.ranks:
            self.loads.forget(pod.id, rank.number)
            self.bookings.forget(pod.id, rank.number)
            self.believed.forget(pod.id, rank.number)
            self.calibration.forget(pod.id, rank.number)
            self.working.forget(pod.id, rank.number)
        self.picker.pod_removed(pod.id)
        self.on_room()
