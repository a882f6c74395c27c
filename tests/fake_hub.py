"""A fake HuggingFace hub with one repository at one commit."""

import hashlib
from collections.abc import Mapping

from tests.fake_http import Answer, Asked, FakeHttp

REPO = "maker/model"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def sha256(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


class FakeHub(FakeHttp):
    """Serves `files`; if `token` is set, only to requests with that token."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        super().__init__(self._file)
        self.files = dict(files)
        self.token = ""

    def _file(self, asked: Asked) -> Answer:
        head, _, rest = asked.path.lstrip("/").partition("/resolve/")
        commit, _, file = rest.partition("/")
        if self.token and asked.headers.get("authorization") != f"Bearer {self.token}":
            return Answer(401, headers={"X-Error-Code": "RepoNotFound"})
        if head != REPO:
            return Answer(404, headers={"X-Error-Code": "RepoNotFound"})
        if commit != COMMIT:
            return Answer(404, headers={"X-Error-Code": "RevisionNotFound"})
        if file not in self.files:
            code = {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}
            return Answer(404, headers=code)
        raw = self.files[file]
        return Answer(200, raw, {"X-Repo-Commit": COMMIT, "ETag": f'"{sha256(raw)}"'})
