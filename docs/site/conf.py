"""Settings of Sphinx for the documentation site: `make site`.

The sources are the pages as they are read in the repository; `navigation.toml` orders them. Links to
other files of the repository become downloads.
"""

import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

from docutils.nodes import document
from pygments.lexers.special import TextLexer
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
HOME = "README"
_DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
_SECTIONS = tomllib.loads(Path(__file__).with_name("navigation.toml").read_text(encoding="utf-8"))[
    "sections"
]

project = _DECLARED["name"]
release = _DECLARED["version"]
language = "en"
root_doc = HOME
include_patterns = [page for section in _SECTIONS for page in section["pages"].values()]
# Sphinx walks through every folder but these.
_FOLDERS = {Path(page).parts[0] for page in include_patterns}
exclude_patterns = [one.name for one in ROOT.iterdir() if one.is_dir() and one.name not in _FOLDERS]

extensions = ["myst_parser"]
myst_heading_anchors = 6
# What GitHub does not know is text here, too.
myst_disable_syntax = ["myst_role", "myst_target", "myst_line_comment", "myst_block_break"]
highlight_language = "text"
# Some examples of JSON are one object a line.
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "furo"
html_title = f"{project} {release}"
_ASSETS = ROOT / "router" / "pages" / "assets"
html_static_path = ["site.css", str(_ASSETS / "copy.js")]
html_css_files = ["site.css"]
html_js_files = ["copy.js"]
# The brand has the live page's colours.
_BRAND = ("primary", "warm"), ("content", "cool"), ("visited", "cool")
_LIGHT, _DARK = (
    {
        f"color-brand-{ours}": dict(re.findall(r"--(\w+): (#\w+)", part))[name]
        for ours, name in _BRAND
    }
    for part in (_ASSETS / "page.css").read_text(encoding="utf-8").split("@media", 1)
)
html_theme_options = {"light_css_variables": _LIGHT, "dark_css_variables": _DARK}
html_copy_source = False
html_show_copyright = False


def _document(page: str) -> str:
    """Return a page's name in Sphinx's list of pages."""
    name = page.removesuffix(".md")
    return "self" if name == HOME else name


def _add_navigation(_: Sphinx, name: str, source: list[str]) -> None:
    """Put all pages below the home page, which is where Sphinx begins to look for them."""
    if name != HOME:
        return
    for section in _SECTIONS:
        pages = "\n".join(
            f"{title} <{_document(page)}>" for title, page in section["pages"].items()
        )
        source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {section['title']}\n\n{pages}\n```\n"


def _show_folders_as_text(app: Sphinx, page: document) -> None:
    """Take away links to folders of the repository: a site has no listing of them."""
    for link in list(page.findall(pending_xref)):
        here = (ROOT / app.env.doc2path(app.env.current_document.docname)).parent
        if (here / link["reftarget"]).is_dir():
            link.replace_self(link.children)


def _add_copy_buttons(
    _: Sphinx, _page: str, _template: str, context: dict[str, Any], _tree: document
) -> None:
    """Put a button after each block of commands, which copy.js copies."""
    block = r'(<div class="highlight-sh notranslate"><div class="highlight"><pre>.*?</pre>)'
    button = r'\1<button type="button" class="copy">Copy</button>'
    if "body" in context:
        context["body"] = re.sub(block, button, context["body"], flags=re.DOTALL)


def _copy_home(app: Sphinx, error: Exception | None) -> None:
    """Let the site's own address show the home page."""
    if error is None:
        shutil.copy(app.outdir / f"{HOME}.html", app.outdir / "index.html")


def setup(app: Sphinx) -> None:
    """Connect what this file has to the build."""
    app.add_lexer("log", TextLexer)
    app.connect("source-read", _add_navigation)
    app.connect("doctree-read", _show_folders_as_text)
    app.connect("html-page-context", _add_copy_buttons)
    app.connect("build-finished", _copy_home)
