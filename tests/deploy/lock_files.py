"""Reads lock files: which packages they pin, on which machines, and by which hashes."""

import re
from dataclasses import dataclass, field

from packaging.markers import Marker

from tests.deploy.manifests import ROOT


@dataclass
class Pinned:
    """A package of a lock file."""

    name: str
    version: str
    marker: str
    """Where it is installed, as PEP 508 has it; empty: everywhere."""
    hashes: set[str] = field(default_factory=set)

    @property
    def is_for_here(self) -> bool:
        """Whether it is installed on this machine."""
        return not self.marker or Marker(self.marker).evaluate()


def locked(name: str) -> dict[str, Pinned]:
    """Return the packages of a lock file, by name. Fails if it has an address beside them."""
    found: dict[str, Pinned] = {}
    package = None
    for line in (ROOT / name).read_text().splitlines():
        assert "://" not in line
        if match := re.match(r"([a-z0-9-]+)==(\S+)(?: ; (.*?))?(?: \\)?$", line):
            package = found[match[1]] = Pinned(match[1], match[2], match[3] or "")
        elif (match := re.search(r"--hash=(sha256:[0-9a-f]{64})", line)) and package is not None:
            package.hashes.add(match[1])
    return found
