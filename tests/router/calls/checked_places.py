"""Looks inside `InFlight`: its totals are those of its places."""

from warmpath.router.admission.in_flight import MOST_KNOWN, STRANGER, InFlight
from warmpath.router.admission.waiting_calls import CallState, WaitingCalls


def check(in_flight: InFlight) -> None:
    """Raise AssertionError if the totals do not match the places."""
    _check_waiting(in_flight._waiting)
    assert in_flight.waiting <= in_flight._most_waiting
    assert in_flight.bytes == sum(in_flight._taken.values())
    strangers = (in_flight._taken[one] for one in in_flight._taken if one.startswith(STRANGER))
    assert in_flight._strangers == sum(strangers)
    for client in in_flight._waiting.clients:
        assert all(
            client == in_flight._client(one) for one in in_flight._waiting._clients[client].calls
        )
    assert all(taken > 0 for taken in in_flight._taken.values())
    assert all(place.state is CallState.READING for place in in_flight._reading)
    assert len(in_flight._known) <= MOST_KNOWN
    assert in_flight._next() is None, "a call waits though it has room"


def _check_waiting(waiting: WaitingCalls) -> None:
    """Raise AssertionError if the totals do not match the calls."""
    assert waiting._clients.keys() == waiting._counts.keys()
    for name, client in waiting._clients.items():
        calls = {one for own in client.calls.values() for one in own}
        assert len(calls) == waiting._counts[name] > 0
        assert all(client.calls.values())
        assert all(one.client == name for one in calls)
        assert sum(len(line.calls) for line in client.lines.values()) == len(calls)
        assert len(client.longest) == len(client.calls)
        kind, rank = waiting._kind_of(name), waiting._rank_of(name)
        for size, line in client.lines.items():
            assert line.calls
            assert waiting._lines[kind, size].rank_of(line) == (*rank, line.turn)
    lines = sum(len(client.lines) for client in waiting._clients.values())
    assert lines == sum(map(len, waiting._lines.values()))
    assert all(waiting._lines.values())
    assert len(waiting._most) == len(waiting._counts)
    assert waiting.number == sum(waiting._counts.values())
