"""The doctor's findings as sentences, and those that come and go while somebody listens."""

import asyncio
import re
from collections.abc import Callable, Sequence
from contextlib import suppress

from warmpath.client.async_client import AsyncClient
from warmpath.client.failure import CallError
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb

LOOK_SECONDS = 5.0
DIGITS = re.compile(r"\d[\d.,]*")


def sentences(found: Sequence[pb.Finding]) -> list[str]:
    """Return the findings as sentences; those of one kind are grouped where their texts are alike.

    One mistake often shows on all pods, and pods may also have several.
    """
    alike: dict[tuple[str, str, str], list[pb.Finding]] = {}
    for one in found:
        alike.setdefault((one.model, one.kind, _form(one)), []).append(one)
    sentences = []
    for (model, kind, _), ones in alike.items():
        first = ones[0]
        whose = " ".join(name for name in (model, first.pod) if name)
        others = ", ".join(dict.fromkeys(one.pod for one in ones[1:] if one.pod != first.pod))
        likewise = f" Likewise {others}." if others else ""
        text = f"{first.text.rstrip('.')}.{likewise}"
        sentences.append(f"{kind}: {whose}: {text}".replace(": : ", ": "))
    return sentences


def _form(one: pb.Finding) -> str:
    """Return a finding's text without what differs from pod to pod: its name and numbers."""
    if not one.pod:
        return one.text
    named = re.sub(rf"(?<![\w-]){re.escape(one.pod)}(?![\w-])", "its pod", one.text)
    return DIGITS.sub("0", named)


async def tell_findings(
    client: AsyncClient, tell: Callable[[str], None], *, pause: float = LOOK_SECONDS
) -> None:
    """Tell the doctor's findings that come and go, until cancelled; those at the start are known."""
    known: set[tuple[str, str, str, str]] | None = None
    before: set[tuple[str, str, str, str]] = set()
    while True:
        with suppress(CallError):
            # Late answers come and go by themselves.
            found = {
                (one.kind, one.model, one.pod, DIGITS.sub("", one.text)): one
                for one in (await client.diagnose()).findings
                if one.kind != "late"
            }
            if known is None:
                known = {*found}
            # At its second look a finding has its cause: a pod's events end before its health.
            new = found.keys() & before - known
            for sentence in sentences([found[name] for name in found if name in new]):
                tell(sentence)
            for kind, model, pod in {name[:3] for name in known} - {name[:3] for name in found}:
                tell(f"{kind}: {' '.join(filter(None, (model, pod)))}: no longer")
            known, before = known & found.keys() | new, {*found}
        await asyncio.sleep(pause)
