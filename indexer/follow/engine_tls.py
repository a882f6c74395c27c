"""TLS settings for engines that serve HTTPS."""

import ssl
from dataclasses import dataclass

from warmpath.process.tls import ClientTls


@dataclass(frozen=True, slots=True)
class EngineTls:
    """The TLS that verifies engines' certificates, and the name expected in them."""

    tls: ClientTls
    name: str | None = None
    """The name in each engine's certificate; None: the host of its address."""

    @property
    def context(self) -> ssl.SSLContext:
        """The context of the next connection; another one after the files have changed."""
        return self.tls.context
