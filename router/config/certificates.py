"""Says until when the certificates that a configuration names are valid."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from warmpath.process.certificates import Validity, validities
from warmpath.process.reread import read_bytes
from warmpath.router.config.files import tls_files
from warmpath.router.config.schema import Config
from warmpath.router.config.toml_lines import Path as KeyPath

SOON = timedelta(days=14)
"""Time before its end in which a certificate is warned of."""


class Dated(NamedTuple):
    """A file of certificates, and the time in which it can be used."""

    at: KeyPath
    path: Path
    validity: Validity

    def problem(self, now: datetime) -> str:
        """Return why nobody accepts it at a moment; empty if it can be used."""
        if self.validity.ends <= now:
            return f"{self.path} has ended, on {_day(self.validity.ends)}"
        if self.validity.begins > now:
            return f"{self.path} does not begin before {_day(self.validity.begins)}"
        return ""

    def warning(self, now: datetime) -> str:
        """Return how soon it ends; empty if that is later than SOON."""
        left = self.validity.ends - now
        if left > SOON:
            return ""
        days = "tomorrow or today" if left.days < 1 else f"in {left.days} days"
        return f"{self.path} ends {days}, on {_day(self.validity.ends)}"


def dated(config: Config, folder: Path) -> Iterator[Dated]:
    """Yield each file of certificates that can be read; files are relative to `folder`.

    A chain ends as its first certificate ends; authorities end as the last one does, as one is enough.
    """
    for at, authority, ca, cert, _ in tls_files(config):
        for name, file, ends in ((authority, ca, max), ("cert", cert, min)):
            if not file:
                continue
            try:
                found = validities(read_bytes(folder / file))
            except (OSError, ValueError):
                continue
            if found:
                begins = min if ends is max else max
                whole = Validity(
                    begins(one.begins for one in found), ends(one.ends for one in found)
                )
                yield Dated((*at, name), folder / file, whole)


def _day(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d")
