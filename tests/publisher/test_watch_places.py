"""Places for watchers: no client keeps others out, and who does not read leaves."""

from types import SimpleNamespace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from warmpath.publisher.watch_server import Places, WatcherPlace, _client

MOST = 6


class Sharing(RuleBasedStateMachine):
    """Clients come, read or not, and go."""

    def __init__(self) -> None:
        super().__init__()
        self.places = Places(MOST)
        self.inside: list[WatcherPlace] = []

    @rule(client=st.sampled_from("abcdefgh"), waits=st.booleans())
    def come(self, client: str, *, waits: bool) -> None:
        held = [place.client for place in self.inside]
        silent = [place for place in self.inside if place.waits]
        ended: list[WatcherPlace] = []
        mine: list[WatcherPlace] = []
        place = self.places.take(client, lambda _: ended.append(mine[0]))
        most = max((held.count(one) for one in held), default=0)
        refused = len(held) >= MOST and held.count(client) + 1 >= most
        assert (place is None) == refused
        if place is not None:
            mine.append(place)
            gone = [one for one in self.inside if one not in self.places._places]
            assert all(held.count(one.client) == most for one in gone)
            assert all(one.waits or one.client not in {s.client for s in silent} for one in gone)
            place.waits = waits
            self.inside = [one for one in self.inside if one not in gone] + [place]

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        if self.inside:
            place = data.draw(st.sampled_from(self.inside))
            self.inside.remove(place)
            self.places.leave(place)
            self.places.leave(place)

    @invariant()
    def is_bounded(self) -> None:
        assert len(self.places) == len(self.inside) <= MOST


TestSharing = Sharing.TestCase


def test_who_does_not_read_yields_its_place_before_who_does() -> None:
    told: list[tuple[int, str]] = []
    places = Places(3)
    held = [places.take("a", lambda reason, i=i: told.append((i, reason))) for i in range(3)]  # type: ignore[misc]
    assert held[1] is not None
    held[1].waits = True
    assert places.take("b", lambda _: None) is not None
    assert [number for number, _ in told] == [1]
    assert "--max-watchers" in told[0][1]
    assert places.yielded == 1


@pytest.mark.parametrize(
    ("peer", "shown", "client"),
    [
        ("ipv4:10.0.0.1:5000", {}, "ipv4:10.0.0.1"),
        ("ipv4:10.0.0.1:5000", {"x509_subject": [b"CN=a"]}, "CN=a"),
        ("ipv4:10.0.0.1:5000", {"x509_common_name": [b"a"]}, "a"),
        ("ipv6:%5B::1%5D:5000", {}, "ipv6:%5B::1%5D"),
        ("unix:", {}, "unix"),
    ],
)
def test_a_client_is_its_certificate_or_else_its_host(
    peer: str, shown: dict[str, list[bytes]], client: str
) -> None:
    context = SimpleNamespace(peer=lambda: peer, auth_context=lambda: shown)
    assert _client(context) == client  # type: ignore[arg-type]
