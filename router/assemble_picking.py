"""What picks stand on and leave behind: built once a process, and told when a pod goes."""

import secrets
from random import Random

from indexer.believed.beliefs import Believed
from indexer.embedded import embedded_index
from indexer.shared.layout.names import Names
from router.config import schema as config
from router.diagnosis.attribution import Attribution
from router.diagnosis.decisions import Decisions
from router.load.bookings import Bookings
from router.load.table import LoadTable
from router.peers import booking_id
from router.peers.exchange import PeerBookings
from router.pick.calibration import Calibration
from router.pick.picker import Picker, PickSettings
from router.pick.scorer import Scorer
from router.pick.sessions import Sessions
from router.pods.table import Pod
from scorer.prefill import PrefillModel

BELIEVED_BYTES = 100
"""Of the index a believed block, on the high side."""


class Picking:
    """The parts of picking."""

    def __init__(
        self,
        pick: config.Pick,
        booking: config.Booking,
        *,
        wall_offset: float,
        shared: Names | None = None,
    ) -> None:
        """Build them. `wall_offset` brings the picker's clock to the Unix epoch, seconds.

        With `shared`, the names of keys in Redis, bookings are shared with other routers: by `peers`,
        once `router.peers.run` lets it speak.
        """
        self._router = booking_id.new_router()
        self._table = pick
        self._booking = booking
        self.bookings = Bookings(
            expire_after=booking.expire_seconds,
            # Where prefill and decoding are apart a pick is booked twice.
            most=2 * booking.max_bookings,
            new_id=self._new_id,
            expects_first_tokens=False,
        )
        self.peers = PeerBookings(self._router, shared, self.bookings) if shared else None
        self.loads = LoadTable(
            self.bookings,
            stale_seconds=pick.load_stale_seconds,
            others=self.peers.told if self.peers else None,
        )
        self.believed = Believed(
            embedded_index(max(16 << 20, BELIEVED_BYTES * pick.max_believed_blocks)),
            max_blocks=pick.max_believed_blocks,
            assumed_seconds=pick.assumed_seconds,
        )
        self.sessions = Sessions(most=pick.max_sessions, seconds=pick.session_seconds)
        self.calibration = Calibration()
        self.decisions = Decisions(pick.kept_decisions, wall_offset=wall_offset)
        self.attribution = Attribution()
        self._picker: Picker | None = None

    def picker(self, scorer: Scorer) -> Picker:
        """Return the picker over a scorer; one only."""
        pick = self._table
        self._picker = Picker(
            scorer,
            loads=self.loads,
            bookings=self.bookings,
            believed=self.believed,
            sessions=self.sessions,
            calibration=self.calibration,
            settings=PickSettings(
                policy=pick.policy,
                options=pick.options,
                prefill=PrefillModel(
                    pick.prefill_base_seconds,
                    pick.prefill_token_seconds,
                    pick.prefill_context_seconds,
                ),
                assumed_seconds=pick.assumed_seconds,
                assumed_blocks=pick.assumed_blocks,
                confirm_seconds=pick.confirm_seconds,
                expire_seconds=self._booking.expire_seconds,
                most=self._booking.max_bookings,
            ),
            new_id=self._new_id,
            rng=Random(secrets.randbits(64)),  # noqa: S311  breaks ties, guards nothing
            witnesses=(self.decisions, self.attribution),
        )
        return self._picker

    @property
    def withdrawn(self) -> int:
        """Picks whose callers went away before their answers could be written."""
        return self._picker.withdrawn if self._picker is not None else 0

    def engine_ended(self, pod: Pod) -> None:
        """Take note that a pod's engine has ended."""
        if self._picker is not None:
            self._picker.engine_ended(pod)

    def forget(self, pod: Pod) -> None:
        """Take note that a pod is gone."""
        if self._picker is not None:
            self._picker.forget(pod)
        self.attribution.forget(pod.id)

    def _new_id(self) -> str:
        return booking_id.new_id(self._router)
