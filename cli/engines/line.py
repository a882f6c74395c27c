"""What a fleet got, in a line for each place: exact, approximate or blind, and the one thing to change.

Of several lacks the one is said that costs the most hits.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Literal, NamedTuple

from warmpath.cli.engines.ask import Away, Found
from warmpath.cli.engines.place import Place
from warmpath.cli.engines.written import Asked
from warmpath.indexer.engines.kind import EVENTS, REPLAY
from warmpath.process.address import HostPort, is_loopback
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.pods.table import WELL

PORTS_APART = 10
"""How far apart the advised ports of two engines of one host are."""


Blind = Mapping[tuple[str, Literal["text", "chat"]], str]
"""By model and form of prompt: why the router cannot make tokens of such prompts."""


class Lack(NamedTuple):
    """What is missing, and how to get it."""

    level: str
    """What is left of the predictions: `exact`, `approximate` or `blind`."""
    text: str
    """A sentence without a full stop."""


def lines(
    asked: Sequence[Asked],
    pods: Sequence[pb.Pod],
    blind: Blind,
    file: str,
    only: Sequence[Asked] = (),
) -> Iterator[str]:
    """Yield the line of each place, only of those in `only` unless it is empty.

    `pods` are the router's, `file` is its configuration.
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
        lacks = list(lacking(one, of_pods, blind, file, number))
        worst = lacks[0] if lacks else Lack("exact", "")
        many = "" if one.place.pods is None else f" ({len(one.found)} found)"
        ranks = f", {len(first.ranks)} ranks" if len(first.ranks) > 1 else ""
        said = f": {worst.text}" if worst.text else ""
        yield f"{one.place.name}{many}  {first.title}, {first.model}{ranks}: {worst.level}{said}"


def lacking(
    one: Asked, pods: Sequence[pb.Pod], blind: Blind, file: str, number: int
) -> Iterator[Lack]:
    """Yield what the engines of a place lack, the worst first.

    `number` counts the places of one host, whose events need ports of their own.
    """
    found, place = one.found[0], one.place
    text, chat = blind.get((found.model, "text"), ""), blind.get((found.model, "chat"), "")
    folder = "a folder with its tokenizer and chat template"
    tokenizer = f"start this command with --tokenizer FOLDER, {folder}"
    if place.is_configured:
        tokenizer = f"set `tokenizer` of its [[models]] in {file} to {folder}"
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
    if text:
        why = text if found.makes_tokens else "it has no /tokenize"
        yield Lack(
            "approximate", f"texts are matched by their bytes, as {why}. For exact {tokenizer}"
        )
    trusts = [rank.trust for pod in pods for rank in pod.ranks]
    is_followed = any(one.level == pb.Trust.EXACT for one in trusts) or place.is_published
    if not (found.sends_events or is_followed):
        yield Lack("approximate", _without_events(found, number, place, file))
    elif place.is_configured and not (
        is_followed or kind.is_polled or place.events.endswith(f":{found.ports.events}")
    ):
        yield Lack(
            "approximate",
            f"it sends events, which the router does not follow. For exact {_table(found, file)}",
        )
    inexact = [one for one in trusts if one.level in (pb.Trust.DEGRADED, pb.Trust.STALE)]
    if inexact:
        yield Lack("approximate", inexact[0].reason)
    if chat and not text:
        why = chat if found.renders_chats else "its /tokenize renders none"
        yield Lack("exact", f"but for chats, matched by their bytes, as {why}: {tokenizer}")
    if not found.has_metrics:
        option = kind.metrics_option
        said = f": start it {option}" if option else ""
        yield Lack("exact", f"but it serves no /metrics, so that its load is only estimated{said}")
    if found.ports.events and not (found.ports.replay or place.is_published):
        also = f", and {_table(found, file)}" if place.is_configured else ""
        yield Lack(
            "exact",
            "but it has no replay, which closes gaps: add replay_endpoint to its --kv-events-config, as "
            f"in {_option(found, number, place)}{also}",
        )
    if not found.is_known:
        yield Lack("exact", "it shows no metrics of vLLM, SGLang or TensorRT-LLM")


def _option(found: Found, number: int, place: Place) -> str:
    """Return the option that turns events on, at the ports of the configuration if it has some."""
    events, replay = (f":{port + number * PORTS_APART}" for port in (EVENTS, REPLAY))
    return found.kind.events_option_at(place.events or events, place.replay or replay)


def _table(found: Found, file: str) -> str:
    host, ports = found.at.host, found.ports
    events = HostPort(host, ports.events or EVENTS)
    replay = HostPort(host, ports.replay or REPLAY)
    return f'set events = "tcp://{events}" and replay = "tcp://{replay}" of its [[pods]] in {file}'


def _without_events(found: Found, number: int, place: Place, file: str) -> str:
    without = "so the router counts on its own picks"
    if not found.is_known:
        return f"no events are known of it, {without}"
    start = f"start it with {_option(found, number, place)}"
    if place.is_configured and not place.events:
        start = f"{start}, and set `events` and `replay` of its [[pods]] in {file}"
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
