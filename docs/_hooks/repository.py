"""Pages of the repository that lie outside docs/: the site gets them too, and every link leads to its page.

A Markdown page that a page of the site links to (a plugin's README, the changelog) becomes a page of its own, and what
that page links to likewise. Other files (a test, an example's code) are put into the site as they are.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
INCLUDED = ("CHANGELOG.md", "CONTRIBUTING.md", "plugins/*/README.md", "examples/*/README.md")
"""Pages of the navigation; the others come by links."""

_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")


def uri(path: Path) -> str:
    """Where a file of the repository lies in the site's sources: /x.md, /plugins/llamacpp.md, /repository/..."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    inner = path.relative_to(ROOT)
    if inner.name == "README.md":
        return f"{inner.parent.as_posix()}.md" if len(inner.parts) > 1 else "index.md"
    if inner.suffix == ".md":
        return inner.as_posix().lower()
    return f"repository/{inner.as_posix()}"


def _linked(page: Path) -> list[Path]:
    """The repository's files outside docs/ that a page links to. What does not exist is left to MkDocs to tell."""
    targets = [(page.parent / link).resolve() for link in _LINK.findall(page.read_text())]
    return [path for path in targets if path.is_file() and path.is_relative_to(ROOT) and not path.is_relative_to(DOCS)]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are always there, and all that is linked, from page to page."""
    waiting = [path for pattern in INCLUDED for path in sorted(ROOT.glob(pattern))]
    waiting += [path for page in files.documentation_pages() for path in _linked(Path(page.abs_src_path or ""))]
    known: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path in known or uri(path) == "index.md":
            continue
        known.add(path)
        files.append(File.generated(config, uri(path), abs_src_path=str(path)))
        waiting += _linked(path) if path.suffix == ".md" else []
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Links between files of the repository, as links between pages of the site."""
    source = Path(page.file.abs_src_path or "")
    here = posixpath.dirname(page.file.src_uri)

    def translated(link: re.Match[str]) -> str:
        path = (source.parent / link[1]).resolve()
        if not path.is_file() or not path.is_relative_to(ROOT):
            return link[1]
        return posixpath.relpath(uri(path), here or ".")

    return _LINK.sub(translated, markdown)
