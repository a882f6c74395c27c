"""Pages that people read name files that exist, link to headings that exist, and can all be reached."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "SECURITY.md",
    ROOT / "lab" / "bench" / "RESULTS.md", *sorted((ROOT / "docs").rglob("*.md")),
]  # fmt: skip
FOLDERS = (
    "cli", "deploy", "docs", "h2grpc", "indexer", "lab", "prefixstore", "process", "proto",
    "publisher", "router", "scorer", "tests", "warmpath",
)  # fmt: skip
SOURCES = [
    path.relative_to(ROOT)
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
]
NAMES = Counter(path.name for path in SOURCES)
FOREIGN = {
    "__init__.py", "chat_template_utils.py", "chat_utils.py", "gateway.py", "hf.py", "sim.py",
}  # fmt: skip
"""Every folder has the first, and the reader of docs/reference/failures.md writes `gateway.py`; the others are files
of vLLM, transformers and the policy study."""
EXAMPLES = {
    "scorer/policies/least_requests.py", "tests/scorer/test_least_requests.py",
    "indexer/engines/acme.py", "tests/indexer/engines/test_acme.py",
}  # fmt: skip
"""Files that the readers of CONTRIBUTING.md and of docs/reference/extending.md write."""

page = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def words(page: Path) -> Iterator[str]:
    """Return all words that could be paths, in code or in a picture."""
    for word in re.findall(r"[\w./*-]+", re.sub(r"\]\([^)]*\)", "]", text_of(page))):
        yield word.rstrip(".")


@page
def test_every_path_exists(page: Path) -> None:
    missing = []
    for word in words(page):
        if word in EXAMPLES or not word.startswith(tuple(f"{folder}/" for folder in FOLDERS)):
            continue
        if not list(ROOT.glob(word)) and not list(ROOT.glob(f"{word}.py")):
            missing.append(word)
    assert not missing


@page
def test_a_file_named_without_its_folder_is_the_only_one_of_that_name(page: Path) -> None:
    bare = {word for word in words(page) if re.fullmatch(r"\w+\.(py|lua)", word)}
    assert not {word: NAMES[word] for word in bare - FOREIGN if NAMES[word] != 1}


@page
def test_every_module_that_a_command_runs_exists(page: Path) -> None:
    for name in re.findall(rf"python -m ((?:{'|'.join(FOLDERS)})[.\w]*)", text_of(page)):
        module = ROOT / name.replace(".", "/")
        assert module.with_suffix(".py").is_file() or (module / "__main__.py").is_file(), name


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """Return the files and headings that a page links to."""
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if "://" not in target:
            path, _, heading = target.partition("#")
            yield (page.parent / path).resolve() if path else page, heading


def headings(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    found = re.findall(r"^#+ (.*)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in found}


@page
def test_every_link_leads_somewhere(page: Path) -> None:
    for path, heading in links(page):
        assert path.exists(), path
        if heading:
            assert heading in headings(path), f"{path.name}#{heading}"


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        one = waiting.pop()
        if one not in reached:
            reached.add(one)
            waiting += [path for path, _ in links(one) if path.suffix == ".md"]
    assert set(PAGES) <= reached


def test_the_glossary_is_in_alphabetical_order() -> None:
    page = (ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
    names = [name.lower() for name in re.findall(r"^\*\*([^*]+)\.\*\*", page, re.MULTILINE)]
    assert names == sorted(names)
