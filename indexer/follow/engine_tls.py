"""TLS settings for engines that serve HTTPS."""

import ssl
from typing import NamedTuple


class EngineTls(NamedTuple):
    """The context that verifies engines' certificates, and the name expected in them."""

    context: ssl.SSLContext
    name: str | None = None
    """The name in each engine's certificate; None: the host of its address."""
