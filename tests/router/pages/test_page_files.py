"""The page's files are served to anybody, with a policy that lets them load nothing from elsewhere."""

import re
from pathlib import Path

from tests.router.pages.stand import live, pods
from warmpath.router.pages.listener import ASSETS, KINDS, POLICY

NAMES = {one.name for one in ASSETS.iterdir()}


async def test_all_files_are_served_with_the_policy(tmp_path: Path) -> None:
    async with live(tmp_path, pods("pod-1")) as (_, session):
        for name in NAMES:
            path = "/" if name == "index.html" else f"/live/{name}"
            async with session.get(path) as answer:
                assert answer.status == 200
                assert answer.content_type == KINDS[name.rpartition(".")[2]]
                assert answer.headers["Content-Security-Policy"] == POLICY
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert await answer.read() == ASSETS.joinpath(name).read_bytes()
        async with session.get("/live/../listener.py") as answer:
            assert answer.status == 404


def test_the_files_name_no_other() -> None:
    for name in NAMES:
        text = ASSETS.joinpath(name).read_text(encoding="utf-8")
        for named in re.findall(r'(?:from |src=|href=)"(?:\./|/live/)([^"]+)"', text):
            assert named in NAMES, (name, named)
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), name


def test_texts_never_become_markup() -> None:
    for name in NAMES:
        if name.endswith(".js"):
            text = ASSETS.joinpath(name).read_text(encoding="utf-8")
            assert not re.search(
                r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text
            )
