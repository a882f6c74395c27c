"""Makes TLS contexts of certificates' texts."""

import ssl
from tempfile import NamedTemporaryFile


def trusting(authority: str) -> ssl.SSLContext:
    """Return a context that trusts an authority, or the system's if its text is empty."""
    context = ssl.create_default_context(cadata=authority or None)
    # From Python 3.13 on it is set, and clusters have authorities that do not pass it.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def show(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Let a context show a certificate. Raises ssl.SSLError, or ValueError for a key with a password."""
    # OpenSSL takes files only; this one is for its owner, and gone at once.
    with NamedTemporaryFile("w", prefix="warmpath-") as file:
        file.write(f"{certificate}\n{key}")
        file.flush()
        # Without a password OpenSSL would ask for one at the terminal.
        context.load_cert_chain(file.name, password="")
