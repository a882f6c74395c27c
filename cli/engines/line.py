"""What a fleet got, in a line for each place: exact, approximate or blind, and the one thing to change.

Of several lacks the one is said that costs the most hits.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import NamedTuple

from warmpath.cli.engines.ask import Away, Found
from warmpath.cli.engines.port import EVENTS, REPLAY
from warmpath.cli.engines.written import Asked
from warmpath.process.address import HostPort, is_loopback
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.pods.table import WELL

PORTS_APART = 10
"""How far apart the advised ports of two engines of one host are."""


class Lack(NamedTuple):
    """What is missing, and how to get it."""

    level: str
    """What is left of the predictions: `exact`, `approximate` or `blind`."""
    text: str
    """A sentence without a full stop."""


def lines(
    asked: Sequence[Asked],
    pods: Sequence[pb.Pod],
    blind: Mapping[str, str],
    file: str,
    only: Sequence[Asked] = (),
) -> Iterator[str]:
    """Yield the line of each place, only of those in `only` unless it is empty.

    `pods` are the router's, `file` is its configuration; `blind`: by model, why it cannot read texts.
    """
    by_address = {one.address: one for one in pods}
    taken: dict[str, Iterator[int]] = {}
    for one in asked:
        host = one.place.address.host if one.place.address else one.place.name
        number = next(taken.setdefault(host, count()))
        if only and one not in only:
            continue
        for away in one.answers:
            if isinstance(away, Away):
                yield f"{away.at}  away: {away.problem}; it is taken in when it answers"
        if not one.found:
            continue
        first = one.found[0]
        of_pods = [pod for at in one.found if (pod := by_address.get(str(at.at)))]
        lacks = list(lacking(one, of_pods, blind.get(first.model, ""), file, number))
        worst = lacks[0] if lacks else Lack("exact", "")
        many = "" if one.place.pods is None else f" ({len(one.found)} found)"
        ranks = f", {len(first.ranks)} ranks" if len(first.ranks) > 1 else ""
        said = f": {worst.text}" if worst.text else ""
        yield f"{one.place.name}{many}  {first.title}, {first.model}{ranks}: {worst.level}{said}"


def lacking(
    one: Asked, pods: Sequence[pb.Pod], blind: str, file: str, number: int
) -> Iterator[Lack]:
    """Yield what the engines of a place lack, the worst first.

    `blind` says why the router makes no tokens of texts, if so. `number` counts the places of one host,
    whose events need ports of their own.
    """
    found = one.found[0]
    kind, told = found.kind, found.told
    wrong = next((pod for pod in pods if pod.status not in ("", WELL)), None)
    if told.caches is False:
        yield Lack("blind", f"its prefix cache is off. Start it with {kind.caching_option}")
    if wrong:
        yield Lack("approximate", f"the router's probe says: {wrong.status}")
    if one.odd:
        which = ", ".join(str(other.at) for other in one.odd[:3])
        yield Lack(
            "approximate",
            f"{which} differs from the others, by which all are configured: give it as an --engine",
        )
    if not found.makes_tokens:
        yield Lack(
            "approximate",
            "it has no /tokenize, so that texts are matched by their bytes. For exact set `tokenizer` "
            f"of its [[models]] in {file} to a folder with its tokenizer.json",
        )
    elif blind:
        yield Lack("approximate", f"texts are matched by their bytes: {blind}")
    if not found.sends_events:
        yield Lack("approximate", _without_events(found, number))
    trusts = [rank.trust for pod in pods for rank in pod.ranks]
    inexact = [one for one in trusts if one.level in (pb.Trust.DEGRADED, pb.Trust.STALE)]
    if inexact:
        yield Lack("approximate", inexact[0].reason)
    if not found.renders_chats:
        yield Lack(
            "exact",
            "but for chats, matched by their bytes, as its /tokenize renders none: set `tokenizer` of "
            f"its [[models]] in {file} to a folder with its tokenizer and chat template",
        )
    if not found.has_metrics:
        option = kind.metrics_option
        said = f": start it {option}" if option else ""
        yield Lack("exact", f"but it serves no /metrics, so that its load is only estimated{said}")
    if found.ports.events and not found.ports.replay:
        yield Lack(
            "exact",
            "but it has no replay, which closes gaps: add replay_endpoint to its --kv-events-config, as "
            f"in {_option(found, number)}",
        )
    if not found.is_known:
        yield Lack("exact", "it shows no metrics of vLLM, SGLang or TensorRT-LLM")


def _option(found: Found, number: int) -> str:
    option = found.kind.events_option
    for port in (EVENTS, REPLAY):
        option = option.replace(str(port), str(port + number * PORTS_APART))
    return option


def _without_events(found: Found, number: int) -> str:
    without = "so the router counts on its own picks"
    if not found.is_known:
        return f"no events are known of it, {without}"
    start = f"start it with {_option(found, number)}"
    tried, is_here = found.ports.tried, is_loopback(str(found.at))
    if several := found.ports.several:
        which = f"its process sends events from {len(several)} ports, {several[0]} and others"
        return f"{which}, {without}. For exact write its own as `events` of its [[pods]]"
    is_off = found.told.events is not None and not found.told.events
    if is_here or is_off:
        return f"it sends no events, {without}. For exact {start}"
    if not tried:
        which = "its host has several engines, so that the port of its events is not known"
        return f"{which}, {without}. For exact write `events` of its [[pods]]"
    port = HostPort(found.at.host, tried[0])
    return f"no events come from port {port}, {without}. Open it to this machine, or {start}"
