"""Loads a tokenizer from the HuggingFace hub, or from a mirror with the same API.

A file is parsed only if its SHA-256 equals the pin's, and from the very bytes that were hashed. No code
of a repository is run: only the files in `ALLOWED` are read.

A branch or a tag can be moved to another tokenizer, and a cache or a mirror can be tampered with; a
commit with the SHA-256 of each file cannot.
"""

import hashlib
import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import huggingface_hub
import huggingface_hub.constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils.tqdm import disable_progress_bars

from warmpath.prefixstore.tokenizers.tokenizer import (
    FolderTokenizer,
    TokenizerUnavailableError,
    in_words,
)
from warmpath.prefixstore.tokenizers.trial import load_folder
from warmpath.prefixstore.workers import in_own_thread

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


MAX_FILE_BYTES = 256 << 20
"""Far above the largest tokenizer.json in use (about 35 MB)."""


class HubSource:
    """A tokenizer of a pinned commit, through `huggingface_hub`'s cache on this machine.

    One `load` takes at most `timeout` seconds. A longer download goes on in its thread, and a later
    `load` uses its result; at most one download runs at a time.
    """

    def __init__(
        self,
        pin: Pin,
        *,
        offline: bool = False,
        token_file: Path | None = None,
        read: Callable[[Path], bytes] = Path.read_bytes,
        endpoint: str | None = None,
        timeout: float = 30.0,
    ) -> None:
        """`pin` must have no `problems`; `endpoint` is the hub's URL, by default `huggingface_hub`'s.

        With `offline` only the cache is used. The only token ever sent is the one in `token_file`, which
        `read` reads.
        """
        self.name = f"{pin.repo} at {pin.revision[:12]} of the hub"
        self._pin = pin
        self._offline = offline
        self._token_file = token_file
        self._read = read
        self._endpoint = endpoint
        self._timeout = timeout
        self._lock = threading.Lock()
        self._fetching: Future[dict[str, bytes]] | None = None

    def load(self) -> FolderTokenizer:
        """Fetch files that the cache lacks, verify all, and load. Raises TokenizerUnavailableError."""
        files = self._files_in_time()
        # A folder of our own has only the verified bytes.
        with tempfile.TemporaryDirectory(prefix="warmpath-") as folder:
            for file, raw in files.items():
                (Path(folder) / file).write_bytes(raw)
            try:
                return load_folder(Path(folder))
            except TokenizerUnavailableError as error:
                raise self._unavailable(str(error.__cause__ or error)) from error

    def _files_in_time(self) -> dict[str, bytes]:
        with self._lock:
            if self._fetching is None:
                self._fetching = in_own_thread(self._files, "hub")
            fetching = self._fetching
        try:
            return fetching.result(self._timeout)
        except TimeoutError as error:
            # The download itself may also have ended with a TimeoutError; then the next load retries.
            if not fetching.done():
                problem = f"is not loaded after {self._timeout:g} s; the download goes on"
                raise self._unavailable(problem) from error
            raise self._unavailable(str(error)) from error
        finally:
            with self._lock:
                if fetching.done() and self._fetching is fetching:
                    self._fetching = None

    def _files(self) -> dict[str, bytes]:
        disable_progress_bars()
        huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY = True
        token = self._token()
        before = {file: self._cached(file) for file in self._pin.digests}
        paths = {file: path or self._fetch(file, token) for file, path in before.items()}
        # If all pinned files were in the cache, the hub is not asked, so it may be down.
        asks = None in before.values()
        for file in set(TELLING) - self._pin.digests.keys():
            if self._cached(file) or (asks and self._size(file, token) is not None):
                raise self._unavailable(
                    f"has {file}, which decides the tokens; name it with its SHA-256"
                )
        return {file: self._verified(file, path) for file, path in paths.items()}

    def _token(self) -> str | bool:
        """Return the token; False: send none, even if this machine is logged in to the hub."""
        if self._token_file is None:
            return False
        try:
            token = self._read(self._token_file).decode().strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "is not text"
            problem = f"the token file {self._token_file} cannot be read: {reason}"
            raise self._unavailable(problem) from error
        if not token or not token.isascii() or not token.isprintable():
            raise self._unavailable(f"the token file {self._token_file} holds no token")
        return token

    def _cached(self, file: str) -> Path | None:
        path = huggingface_hub.try_to_load_from_cache(
            self._pin.repo, file, revision=self._pin.revision
        )
        return Path(path) if isinstance(path, str) else None

    def _size(self, file: str, token: str | bool) -> int | None:
        """Return a file's size in bytes according to the hub, None if it has no such file.

        It is called before a download because it fails at once, while a download retries for half a
        minute.
        """
        pin = self._pin
        try:
            found = huggingface_hub.get_hf_file_metadata(
                huggingface_hub.hf_hub_url(
                    pin.repo, file, revision=pin.revision, endpoint=self._endpoint
                ),
                token=token,
                timeout=self._timeout,
                endpoint=self._endpoint,
            )
        except Exception as error:
            if _is_missing(error):
                return None
            # `huggingface_hub` lets errors of its HTTP client through, which depends on its version.
            raise self._unavailable(self._reason(error)) from error
        return found.size or 0

    def _fetch(self, file: str, token: str | bool) -> Path:
        pin = self._pin
        if self._offline:
            where = huggingface_hub.constants.HF_HUB_CACHE
            raise self._unavailable(f"offline, and {file} is not in the cache {where}")
        size = self._size(file, token)
        if size is None:
            raise self._unavailable(f"has no {file}")
        if size > MAX_FILE_BYTES:
            raise self._unavailable(f"{file} has {size} bytes; at most {MAX_FILE_BYTES} are taken")
        try:
            path = huggingface_hub.hf_hub_download(
                pin.repo,
                file,
                revision=pin.revision,
                endpoint=self._endpoint,
                token=token,
                etag_timeout=self._timeout,
            )
        except Exception as error:
            raise self._unavailable(self._reason(error)) from error
        return Path(path)

    def _verified(self, file: str, path: Path) -> bytes:
        try:
            with path.open("rb") as opened:
                raw = opened.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            raise self._unavailable(f"{path} cannot be read: {error.strerror}") from error
        digest = hashlib.sha256(raw).hexdigest()
        if digest != self._pin.digests[file]:
            raise self._unavailable(
                f"{file} has SHA-256 {digest}, not {self._pin.digests[file]} as configured; "
                f"it lies at {path}"
            )
        return raw

    def _reason(self, error: Exception) -> str:
        pin = self._pin
        if isinstance(error, LocalEntryNotFoundError):
            # Its message is advice; its cause is what happened.
            error = error.__cause__ if isinstance(error.__cause__, Exception) else error
        if isinstance(error, RevisionNotFoundError):
            return f"has no revision {pin.revision}"
        if isinstance(error, OfflineModeIsEnabled):
            return "cannot be fetched: HF_HUB_OFFLINE is set"
        if isinstance(error, HfHubHTTPError):
            status = error.response.status_code
            if isinstance(error, GatedRepoError) or status in (401, 403):
                shown = f"the token in {self._token_file}" if self._token_file else "no token"
                kind = "a gated repository" if isinstance(error, GatedRepoError) else "refused"
                return f"{kind} (HTTP {status}), asked with {shown}; is the name right?"
            if isinstance(error, RepositoryNotFoundError):
                return f"there is no such repository (HTTP {status})"
            return f"the hub answers HTTP {status}"
        if "timeout" in type(error).__name__.lower():
            return f"the hub did not answer within {self._timeout:g} s"
        of_client = type(error).__module__.startswith("httpx")
        what = "the hub cannot be reached" if of_client else "cannot be fetched"
        return f"{what}: {in_words(error)}"

    def _unavailable(self, problem: str) -> TokenizerUnavailableError:
        return TokenizerUnavailableError(f"{self.name}: {problem}")


def _is_missing(error: Exception) -> bool:
    """Return whether an error means that a repository has no such file; mirrors send a plain 404."""
    if isinstance(error, RevisionNotFoundError | RepositoryNotFoundError):
        return False
    return isinstance(error, HfHubHTTPError) and error.response.status_code == 404
