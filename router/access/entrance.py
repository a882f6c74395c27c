"""The protection of a router's listeners: their TLS, and who may call."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warmpath.h2grpc.metadata import address_of
from warmpath.h2grpc.method import Method
from warmpath.process.reread import Reread
from warmpath.process.tls import ServerTls
from warmpath.router.access.callers import Callers
from warmpath.router.access.guard import KeptOutMeter, guarded, shown_by
from warmpath.router.config.check import exposed
from warmpath.router.config.files import server_tls
from warmpath.router.config.schema import Config
from warmpath.router.transport.call import Call

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Entrance:
    """TLS and the access check, for gRPC's methods and for HTTP's paths."""

    tls: ServerTls | None
    """None: plain connections."""
    callers: Callers | None
    """None: anybody may call."""

    @property
    def files(self) -> list[Reread[Any]]:
        """The files of certificates and tokens, to be kept current."""
        tls = [self.tls.files] if self.tls is not None else []
        return [*tls, *(self.callers.files if self.callers is not None else ())]

    def classes_of(self, call: Call) -> Collection[str] | None:
        """Return the classes of the queue that a call's sender may name; None: all."""
        return None if self.callers is None else self.callers.classes(*shown_by(call))

    def caller_of(self, call: Call) -> str:
        """Return who a call's sender is: the clients that it proves to be, or else its address."""
        known = [] if self.callers is None else self.callers.known(*shown_by(call))
        names = sorted(client.name for client in known)
        return " ".join(names) or address_of(call.peer)

    def guarded(self, methods: Mapping[str, Method], counts: KeptOutMeter) -> Mapping[str, Method]:
        """Return methods with the check of who calls before them."""
        return methods if self.callers is None else guarded(methods, self.callers, counts)


def entrance(config: Config, folder: Path) -> Entrance:
    """Return the entrance of a configuration, whose files are relative to `folder`.

    Log a warning for each listener that other machines reach unprotected. Raises OSError.
    """
    for key, address, lacks in exposed(config):
        log.warning(
            "server.%s: other machines reach %s, which lacks %s (server.insecure)",
            key, address, lacks,
        )  # fmt: skip
    return Entrance(
        server_tls(config.server.tls, folder),
        Callers(config.clients, folder) if config.clients else None,
    )
