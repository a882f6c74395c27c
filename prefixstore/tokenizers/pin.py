"""Pins the trusted files of one commit of a repository on a hub, with their SHA-256.

A branch or a tag can be moved to another tokenizer, and a cache or a mirror can be tampered with; a
commit with the SHA-256 of each file cannot.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

DEFINITION = "tokenizer.json"

TELLING = (DEFINITION, "tokenizer_config.json", "chat_template.jinja")
"""Files that determine the tokens; the pin must name each of them that the repository has."""

ALLOWED = (*TELLING, "config.json", "special_tokens_map.json")
"""The only files that are fetched: data, never code."""

_REPO = re.compile(r"^[A-Za-z0-9_][\w.-]*(/[A-Za-z0-9_][\w.-]*)?$", re.ASCII)
_COMMIT = re.compile(r"^[0-9a-f]{40}$")
_DIGEST = re.compile(r"^[0-9a-f]{64}$")


@dataclass(frozen=True, slots=True)
class Pin:
    """The trusted files of one commit."""

    repo: str
    """OWNER/NAME."""
    revision: str
    """The full commit, 40 hexadecimal digits."""
    digests: Mapping[str, str]
    """From a file's name to its SHA-256, 64 hexadecimal digits."""

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield each problem as a field's name (`repo`, `revision`, `files`) and a text."""
        if not _REPO.match(self.repo) or ".." in self.repo or "--" in self.repo:
            yield "repo", f"{self.repo!r} is not OWNER/NAME"
        if not _COMMIT.match(self.revision):
            problem = f"{self.revision!r} is not a full commit of 40 hexadecimal digits"
            yield "revision", f"{problem}; branches and tags can move"
        for file, digest in self.digests.items():
            if file not in ALLOWED:
                yield "files", f"{file!r} is not fetched; known: {', '.join(ALLOWED)}"
            elif not _DIGEST.match(digest):
                yield "files", f"{file}: {digest!r} is not a SHA-256 of 64 hexadecimal digits"
        if DEFINITION not in self.digests:
            yield (
                "files",
                f"has no {DEFINITION!r}; each file that is used must be named with its SHA-256",
            )
