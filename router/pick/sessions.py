"""Remembers for each session the pod and rank of its last request."""

from collections import OrderedDict

from warmpath.process.invariant import BrokenInvariantError


class Sessions:
    """The last pick of each of at most `most` sessions, each kept for `seconds` after its last request.

    Beyond `most`, the session with the oldest pick is dropped. Times are seconds of one clock; if it is
    set back, picks later than now are forgotten.
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
        """Return the pod and rank of a session's last pick, None if there is none or it is too old."""
        pick = self._picks.get(session)
        if pick is None:
            return None
        pod, rank, at = pick
        if not 0 <= now - at < self._seconds:
            self._drop(session)
            return None
        return pod, rank

    def put(self, session: str, pod: str, rank: int, now: float) -> None:
        """Record a session's pick; do nothing for an empty name."""
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
        """Forget the sessions on a removed pod."""
        for session in self._of_pod.pop(pod, ()):
            del self._picks[session]

    def check(self) -> None:
        """Raise BrokenInvariantError if the two dicts differ or too many sessions are kept."""
        of_pod: dict[str, set[str]] = {}
        for session, (pod, _, _) in self._picks.items():
            of_pod.setdefault(pod, set()).add(session)
        if of_pod != self._of_pod:
            raise BrokenInvariantError("the sessions of the pods are not those that are kept")
        if len(self._picks) > self._most:
            raise BrokenInvariantError(f"{len(self._picks)} sessions; at most {self._most}")

    def _drop(self, session: str) -> None:
        pod = self._picks.pop(session)[0]
        sessions = self._of_pod[pod]
        sessions.remove(session)
        if not sessions:
            del self._of_pod[pod]
