"""Places for watchers: no client keeps others out, and who does not read leaves."""

from types import SimpleNamespace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from warmpath.process.listener import Place, Places, State
from warmpath.publisher.watch_server import _client

MOST = 6


class Sharing(RuleBasedStateMachine):
    """Clients come, read or not, and go."""

    def __init__(self) -> None:
        super().__init__()
        self.places = Places(MOST)
        self.inside: list[Place] = []

    @rule(client=st.sampled_from("abcdefgh"), waits=st.booleans())
    def come(self, client: str, *, waits: bool) -> None:
        held = [place.address for place in self.inside]
        silent = [place for place in self.inside if place.state is State.STALLED]
        place = self.places.enter(client, lambda: None)
        most = max((held.count(one) for one in held), default=0)
        refused = len(held) >= MOST and held.count(client) + 1 >= most
        assert (place is None) == refused
        if place is not None:
            gone = [one for one in self.inside if one.state is None]
            assert all(held.count(one.address) == most for one in gone)
            assert all(
                one in silent or one.address not in {s.address for s in silent} for one in gone
            )
            place.becomes(State.BUSY)
            place.stalls(is_stalled=waits)
            self.inside = [one for one in self.inside if one not in gone] + [place]

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        if self.inside:
            place = data.draw(st.sampled_from(self.inside))
            self.inside.remove(place)
            place.leave()
            place.leave()

    @invariant()
    def is_bounded(self) -> None:
        assert len(self.places) == len(self.inside) <= MOST


TestSharing = Sharing.TestCase


def test_who_does_not_read_yields_its_place_before_who_does() -> None:
    told: list[int] = []
    places = Places(3)
    held = [places.enter("a", lambda i=i: told.append(i)) for i in range(3)]  # type: ignore[misc]
    for place in filter(None, held):
        place.becomes(State.BUSY)
    assert held[1] is not None
    held[1].stalls(is_stalled=True)
    assert places.enter("b", lambda: None) is not None
    assert told == [1]


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
