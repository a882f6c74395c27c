"""Sessions: where the last request of each went."""

from collections import OrderedDict

from indexer.invariant import BrokenInvariantError


class Sessions:
    """The last pick of each session: at most `most` of them, each for `seconds` after its last request.

    Past `most`, the one that was picked for least recently goes. Times are seconds of one clock; where
    it is set back, what was picked later than now is forgotten.
    """

    def __init__(self, *, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._picks: OrderedDict[str, tuple[str, int, float]] = OrderedDict()
        """Pod, rank and time by session, the oldest first."""
        self._of_pod: dict[str, set[str]] = {}

    def __len__(self) -> int:
        return len(self._picks)

    def get(self, session: str, now: float) -> tuple[str, int] | None:
        """Return the pod and rank of a session's last pick; None where there is none that counts."""
        pick = self._picks.get(session)
        if pick is None:
            return None
        pod, rank, at = pick
        if not 0 <= now - at < self._seconds:
            self._drop(session)
            return None
        return pod, rank

    def put(self, session: str, pod: str, rank: int, now: float) -> None:
        """Take note of a session's pick. An empty name is no session."""
        if not session:
            return
        if session in self._picks:
            self._drop(session)
        self._picks[session] = pod, rank, now
        self._of_pod.setdefault(pod, set()).add(session)
        while self._picks:
            oldest, (_, _, at) = next(iter(self._picks.items()))
            if len(self._picks) <= self._most and 0 <= now - at < self._seconds:
                return
            self._drop(oldest)

    def forget(self, pod: str) -> None:
        """Forget a pod that is gone."""
        for session in self._of_pod.pop(pod, ()):
            del self._picks[session]

    def check(self) -> None:
        """Raise BrokenInvariantError where the two views differ or too much is kept."""
        of_pod: dict[str, set[str]] = {}
        for session, (pod, _, _) in self._picks.items():
            of_pod.setdefault(pod, set()).add(session)
        if of_pod != self._of_pod:
            raise BrokenInvariantError("the sessions of the pods are not those that are kept")
        if len(self._picks) > self._most:
            raise BrokenInvariantError(f"{len(self._picks)} sessions, of at most {self._most}")

    def _drop(self, session: str) -> None:
        pod = self._picks.pop(session)[0]
        sessions = self._of_pod[pod]
        sessions.remove(session)
        if not sessions:
            del self._of_pod[pod]
