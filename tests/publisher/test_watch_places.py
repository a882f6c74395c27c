"""Places for watchers: no client keeps others out, and who does not read leaves."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from warmpath.publisher.places import Places, WatcherPlace, client_of

MOST, SLOW = 6, 10.0


class Sharing(RuleBasedStateMachine):
    """Clients come, read or not, and go."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.places = Places(MOST, slow_seconds=SLOW, clock=lambda: self.now)
        self.inside: list[WatcherPlace] = []
        self.waits: dict[WatcherPlace, float] = {}

    @rule(client=st.sampled_from("abcdefgh"))
    def come(self, client: str) -> None:
        ended: list[WatcherPlace] = []
        held = [place.client for place in self.inside]
        mine: list[WatcherPlace] = []
        place = self.places.take(client, lambda _: ended.append(mine[0]))
        most = max((held.count(one) for one in held), default=0)
        refused = len(held) >= MOST and held.count(client) + 1 >= most
        assert (place is None) == refused
        if place is not None:
            mine.append(place)
            self.inside = [one for one in self.inside if not one.is_ending] + [place]

    @rule(data=st.data(), reads=st.booleans())
    def send(self, data: st.DataObject, reads: bool) -> None:
        if self.inside:
            place = data.draw(st.sampled_from(self.inside))
            if place not in self.waits:
                self.places.sending(place)
                self.waits[place] = self.now
            if reads:
                self.places.sent(place)
                del self.waits[place]

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        if self.inside:
            place = data.draw(st.sampled_from(self.inside))
            self.inside.remove(place)
            self.places.leave(place)
            self.places.leave(place)

    @rule(seconds=st.sampled_from([1.0, 9.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        late = [one for one in self.inside if self.now - self.waits.get(one, self.now) > SLOW]
        assert len(list(self.places.end_slow())) == len(late)
        assert all(one.is_ending for one in late)
        assert list(self.places.end_slow()) == [], "each is asked once"
        for one in late:
            self.places.leave(one)
            self.inside.remove(one)

    @invariant()
    def is_bounded(self) -> None:
        assert len(self.places) == len(self.inside) <= MOST
        assert not any(place.is_ending for place in self.inside)


TestSharing = Sharing.TestCase


def test_who_does_not_read_yields_its_place_before_who_does() -> None:
    told: list[tuple[int, str]] = []
    places = Places(3, slow_seconds=SLOW, clock=lambda: 0.0)
    held = [places.take("a", lambda reason, i=i: told.append((i, reason))) for i in range(3)]  # type: ignore[misc]
    assert held[1] is not None
    places.sending(held[1])
    assert places.take("b", lambda _: None) is not None
    assert [number for number, _ in told] == [1]
    assert "--max-watchers" in told[0][1]
    assert places.yielded == 1


def test_a_client_is_its_certificate_or_else_its_host() -> None:
    assert client_of("ipv4:10.0.0.1:5000", "") == client_of("ipv4:10.0.0.1:5001", "")
    assert client_of("ipv4:10.0.0.1:5000", "CN=a") == client_of("ipv4:10.0.0.2:5000", "CN=a")
    assert client_of("ipv6:%5B::1%5D:5000", "") == "ipv6:%5B::1%5D"
    assert client_of("unix:", "") == "unix"
