"""Connections of one address keep no other address out; idle ones give way first, and who reads last."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.examples import examples
from warmpath.process.listener import Place, Places, State

MOST = 6
AT_WORK = {State.STALLED, State.BUSY}


def check(places: Places) -> None:
    """Raise AssertionError if the counts are not those of the places."""
    assert places._all == sum(map(len, places._of.values())) <= places.most
    assert places.opening == sum(
        place.state is State.OPENING for of in places._of.values() for place in of
    )
    assert all(places._of.values())


class Machine(RuleBasedStateMachine):
    """Connections of a few addresses come, work, stall, rest and go."""

    def __init__(self) -> None:
        super().__init__()
        self.places = Places(MOST)
        self.here: list[Place] = []
        self.ended: list[Place] = []

    def of(self, address: str) -> list[Place]:
        return [place for place in self.here if place.address == address]

    @rule(address=st.sampled_from("abcd"))
    def one_comes(self, address: str) -> None:
        counts = {place.address: len(self.of(place.address)) for place in self.here}
        states = {place: place.state for place in self.here}
        before = len(self.here)
        own = counts.get(address, 0)

        def end() -> None:
            assert made is not None
            self.ended.append(made)

        made = self.places.enter(address, end)
        most = max(counts.values(), default=0)
        if before == MOST and AT_WORK.issuperset(states.values()):
            assert (made is None) == (own + 1 >= most)
        if before < MOST:
            assert made
            assert not self.ended
        elif made is None:
            with_most = [one for one, count in counts.items() if count == most]
            assert own + 1 >= most, "an address with more connections gives way"
            if own + 1 > most:
                with_most = [address]
            assert any(all(place.state in AT_WORK for place in self.of(one)) for one in with_most)
        else:
            (gone,) = self.ended
            assert counts[gone.address] >= own + (gone.address != address)
            of = [states[place] for place in self.of(gone.address)]
            assert states[gone] is not State.BUSY or State.STALLED not in of, "who reads stays"
            self.here.remove(gone)
            self.ended.clear()
        if made is not None:
            self.here.append(made)

    @precondition(lambda self: self.here)
    @rule(data=st.data(), state=st.sampled_from([State.IDLE, State.BUSY]))
    def one_works_or_rests(self, data: st.DataObject, state: State) -> None:
        data.draw(st.sampled_from(self.here)).becomes(state)

    @precondition(lambda self: self.here)
    @rule(data=st.data(), is_stalled=st.booleans())
    def one_stalls_or_reads(self, data: st.DataObject, *, is_stalled: bool) -> None:
        place = data.draw(st.sampled_from(self.here))
        if place.state in AT_WORK:
            place.stalls(is_stalled=is_stalled)

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def one_goes(self, data: st.DataObject) -> None:
        place = data.draw(st.sampled_from(self.here))
        for _ in range(2):
            place.leave()
        self.here.remove(place)

    @invariant()
    def counts_are_right(self) -> None:
        check(self.places)
        assert len(self.places) == len(self.here)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=examples(300), deadline=None)


def entered(places: Places, *addresses: str) -> list[Place]:
    found = [places.enter(address, lambda: None) for address in addresses]
    assert all(found)
    return [place for place in found if place is not None]


def test_handshakes_give_way_first_then_the_longest_idle_then_the_latest_busy_one() -> None:
    places = Places(4)
    one, two, three, four = entered(places, *"aaaa")
    one.becomes(State.IDLE)
    two.becomes(State.BUSY)
    three.becomes(State.BUSY)
    gone = []
    for address in ("b", "c"):
        entered(places, address)
        gone += [place for place in (one, two, three, four) if place.state is None]
    assert gone[0] is four
    assert gone[-1] is one or one in gone
    entered(places, "d")[0].becomes(State.IDLE)
    assert three.state is None or two.state is None
