"""warmpath as a library: which pods hold a prompt's KV cache, which one should take it; no processes.

    Index    knows what each pod holds, from events or an engine's own payloads
    Scorer   says how much of a prompt each pod holds
    Picker   chooses a pod by cost, books the work, and follows it by reports
    Client   asks a router that runs elsewhere; AsyncClient does so for asyncio

It is a façade: the code behind it is the router's own, in `indexer/`, `scorer/` and `router/`. What is
not named here may change. `docs/library.md` has examples and says what threads may do.

A name is imported when it is used first. gRPC is imported for the clients only.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from indexer.engines.event import Cleared, Moved, Removed, Stored, Tier
    from indexer.keys.extra import Item, pack_extra
    from indexer.keys.token import pack_tokens
    from indexer.process.tls_files import TlsPaths
    from indexer.trust import Level, Trust
    from router.client.async_client import AsyncClient
    from router.client.client import Client
    from router.client.credentials import SettingError
    from router.client.failure import CallError
    from router.client.load import PodLoad
    from router.client.prompt import AnyPrompt, Prompt
    from router.client.retry import Retry
    from router.client.stream import StreamAnswer
    from router.config.schema import BookingTable, PickTable
    from router.pick.eligible import NoPodError
    from warmpath.index import Index
    from warmpath.picked import Candidate, Picked, Source
    from warmpath.picker import Picker
    from warmpath.reader import Tokenizer
    from warmpath.scorer import PodScore, Scorer

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
    "indexer.engines.event": ("Cleared", "Moved", "Removed", "Stored", "Tier"),
    "indexer.keys.extra": ("Item", "pack_extra"),
    "indexer.keys.token": ("pack_tokens",),
    "indexer.process.tls_files": ("TlsPaths",),
    "indexer.trust": ("Level", "Trust"),
    "router.client.async_client": ("AsyncClient",),
    "router.client.client": ("Client",),
    "router.client.credentials": ("SettingError",),
    "router.client.failure": ("CallError",),
    "router.client.load": ("PodLoad",),
    "router.client.prompt": ("AnyPrompt", "Prompt"),
    "router.client.retry": ("Retry",),
    "router.client.stream": ("StreamAnswer",),
    "router.config.schema": ("BookingTable", "PickTable"),
    "router.pick.eligible": ("NoPodError",),
    "warmpath.index": ("Index",),
    "warmpath.picked": ("Candidate", "Picked", "Source"),
    "warmpath.picker": ("Picker",),
    "warmpath.reader": ("Tokenizer",),
    "warmpath.scorer": ("PodScore", "Scorer"),
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
