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
    from warmpath.client.async_client import AsyncClient as AsyncClient
    from warmpath.client.calls import AnyPrompt as AnyPrompt
    from warmpath.client.calls import PodLoad as PodLoad
    from warmpath.client.calls import Prompt as Prompt
    from warmpath.client.connection import Retry as Retry
    from warmpath.client.connection import StreamAnswer as StreamAnswer
    from warmpath.client.credentials import SettingError as SettingError
    from warmpath.client.failure import CallError as CallError
    from warmpath.client.openai import openai as openai
    from warmpath.client.request import Request as Request
    from warmpath.client.sync_client import Client as Client
    from warmpath.indexer.engines.event import Cleared as Cleared
    from warmpath.indexer.engines.event import Moved as Moved
    from warmpath.indexer.engines.event import Removed as Removed
    from warmpath.indexer.engines.event import Stored as Stored
    from warmpath.indexer.engines.event import Tier as Tier
    from warmpath.indexer.keys.key import Item as Item
    from warmpath.indexer.keys.key import pack_extra as pack_extra
    from warmpath.indexer.keys.key import pack_tokens as pack_tokens
    from warmpath.indexer.trust import Level as Level
    from warmpath.indexer.trust import Trust as Trust
    from warmpath.library.index import Index as Index
    from warmpath.library.picker import Candidate as Candidate
    from warmpath.library.picker import Picked as Picked
    from warmpath.library.picker import Picker as Picker
    from warmpath.library.picker import Source as Source
    from warmpath.library.pod_score import PodScore as PodScore
    from warmpath.library.pod_score import Scorer as Scorer
    from warmpath.library.pod_score import Tokenizer as Tokenizer
    from warmpath.process.tls import TlsPaths as TlsPaths
    from warmpath.router.config.schema import BookingTable as BookingTable
    from warmpath.router.config.schema import PickTable as PickTable
    from warmpath.router.pick.eligible import NoPodError as NoPodError

_MODULES = {
    "warmpath.client.async_client": ("AsyncClient",),
    "warmpath.client.calls": ("AnyPrompt", "PodLoad", "Prompt"),
    "warmpath.client.connection": ("Retry", "StreamAnswer"),
    "warmpath.client.credentials": ("SettingError",),
    "warmpath.client.failure": ("CallError",),
    "warmpath.client.openai": ("openai",),
    "warmpath.client.request": ("Request",),
    "warmpath.client.sync_client": ("Client",),
    "warmpath.indexer.engines.event": ("Cleared", "Moved", "Removed", "Stored", "Tier"),
    "warmpath.indexer.keys.key": ("Item", "pack_extra", "pack_tokens"),
    "warmpath.indexer.trust": ("Level", "Trust"),
    "warmpath.library.index": ("Index",),
    "warmpath.library.picker": ("Candidate", "Picked", "Picker", "Source"),
    "warmpath.library.pod_score": ("PodScore", "Scorer", "Tokenizer"),
    "warmpath.process.tls": ("TlsPaths",),
    "warmpath.router.config.schema": ("BookingTable", "PickTable"),
    "warmpath.router.pick.eligible": ("NoPodError",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
__all__ = list(_MODULE_OF)

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
