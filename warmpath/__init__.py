"""warmpath as a library: which pods hold a prompt's KV cache, which one should take it; no processes.

    Index    knows what each pod holds, from events or an engine's own payloads
    Scorer   says how much of a prompt each pod holds
    Picker   chooses a pod by cost, books the work, and follows it by reports
    Client   asks a router that runs elsewhere; AsyncClient does so for asyncio

It is a façade: the code behind it is the router's own, in `indexer/`, `scorer/` and `router/`. What is
not named here may change. `docs/start/library.md` has examples and says what threads may do.

A name is imported when it is used first. gRPC is imported for the clients only.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warmpath.client.async_client import AsyncClient
    from warmpath.client.calls import PodLoad
    from warmpath.client.credentials import SettingError
    from warmpath.client.failure import CallError
    from warmpath.client.prompt import AnyPrompt, Prompt
    from warmpath.client.retry import Retry
    from warmpath.client.stream import StreamAnswer
    from warmpath.client.sync_client import Client
    from warmpath.indexer.engines.event import Cleared, Moved, Removed, Stored, Tier
    from warmpath.indexer.keys.extra import Item, pack_extra
    from warmpath.indexer.keys.key import pack_tokens
    from warmpath.indexer.trust import Level, Trust
    from warmpath.library.index import Index
    from warmpath.library.picker import Candidate, Picked, Picker, Source
    from warmpath.library.pod_score import PodScore, Scorer
    from warmpath.library.reader import Tokenizer
    from warmpath.process.tls import TlsPaths
    from warmpath.router.config.schema import BookingTable, PickTable
    from warmpath.router.pick.eligible import NoPodError

__all__ = [
    "AnyPrompt",
    "AsyncClient",
    "BookingTable",
    "CallError",
    "Candidate",
    "Cleared",
    "Client",
    "Index",
    "Item",
    "Level",
    "Moved",
    "NoPodError",
    "PickTable",
    "Picked",
    "Picker",
    "PodLoad",
    "PodScore",
    "Prompt",
    "Removed",
    "Retry",
    "Scorer",
    "SettingError",
    "Source",
    "Stored",
    "StreamAnswer",
    "Tier",
    "TlsPaths",
    "Tokenizer",
    "Trust",
    "pack_extra",
    "pack_tokens",
]

_MODULES = {
    "warmpath.indexer.engines.event": ("Cleared", "Moved", "Removed", "Stored", "Tier"),
    "warmpath.indexer.keys.extra": ("Item", "pack_extra"),
    "warmpath.indexer.keys.key": ("pack_tokens",),
    "warmpath.process.tls": ("TlsPaths",),
    "warmpath.indexer.trust": ("Level", "Trust"),
    "warmpath.client.async_client": ("AsyncClient",),
    "warmpath.client.sync_client": ("Client",),
    "warmpath.client.credentials": ("SettingError",),
    "warmpath.client.failure": ("CallError",),
    "warmpath.client.calls": ("PodLoad",),
    "warmpath.client.prompt": ("AnyPrompt", "Prompt"),
    "warmpath.client.retry": ("Retry",),
    "warmpath.client.stream": ("StreamAnswer",),
    "warmpath.router.config.schema": ("BookingTable", "PickTable"),
    "warmpath.router.pick.eligible": ("NoPodError",),
    "warmpath.library.index": ("Index",),
    "warmpath.library.picker": ("Candidate", "Picked", "Picker", "Source"),
    "warmpath.library.reader": ("Tokenizer",),
    "warmpath.library.pod_score": ("PodScore", "Scorer"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a public name; later uses find it in the module."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'warmpath' has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
        return found

    def __dir__() -> list[str]:
        """Return the public names."""
        return sorted([*__all__, "__doc__"])
