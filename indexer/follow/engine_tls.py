"""How engines that serve HTTPS are recognised."""

import ssl
from typing import NamedTuple


class EngineTls(NamedTuple):
    """Who vouches for engines, and by which name."""

    context: ssl.SSLContext
    name: str | None = None
    """The name that each engine's certificate has; None: the host at which it is asked."""
