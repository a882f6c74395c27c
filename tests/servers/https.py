"""A server that answers over HTTPS alone."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.servers.certificates import Authority
from tests.servers.http import Respond, listening


@asynccontextmanager
async def serving(
    authority: Authority,
    respond: Respond,
    *,
    client_ca: str | None = None,
) -> AsyncIterator[str]:
    """Serve while the context is open; yield host:port. Callers show a certificate of `client_ca`."""
    certificate = authority.certificate("engine")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    if client_ca:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(certificate.cert, certificate.key)
    async with listening(respond, context) as address:
        yield address
