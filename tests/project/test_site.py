"""The site that `make docs` builds: without a warning, every page in the navigation, and nothing from elsewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENVIRON = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
"""The theme would tell of its own future at each build."""

_TAG = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*>")
_OUTSIDE = re.compile(r"""\b(?:src|href)=["']?(?:https?:)?//""")
_LINK = re.compile(r"""<a\b[^>]*\bhref=["']?(?!\w+:|#)([^"'\s>#]+)""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRON, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr, done.stderr
    return folder


def pages(site: Path) -> list[Path]:
    found = sorted(site.rglob("*.html"))
    assert len(found) > 30
    return found


def test_every_document_is_a_page(site: Path) -> None:
    documents = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    assert not [path for path in documents if not (site / path.with_suffix(".html")).exists()]
    plugins = [path.parent.name for path in ROOT.glob("plugins/*/README.md")]
    assert not [name for name in plugins if not (site / "plugins" / f"{name}.html").exists()]


def test_a_page_has_one_place_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    places = re.findall(r"([\w/.-]+\.md)$", navigation, re.MULTILINE)
    assert len(places) == len(set(places)) > 30


def test_it_loads_nothing_from_elsewhere(site: Path) -> None:
    for page in pages(site):
        assert not [tag for tag in _TAG.findall(page.read_text()) if _OUTSIDE.search(tag) and "canonical" not in tag], (
            page
        )
    sheets = "".join(path.read_text() for path in site.rglob("*.css"))
    assert not re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", sheets)


def test_it_is_searched_from_the_disk(site: Path) -> None:
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no browser is installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto((site / "index.html").as_uri())
        page.get_by_role("textbox", name="Search").press_sequentially("draining")
        page.locator(".md-search-result__link[href*='drain.html']").first.wait_for(state="visible")
        browser.close()


def test_its_links_lead_to_pages(site: Path) -> None:
    for page in pages(site):
        if page.name != "404.html":  # which is served for any path
            links = [link.split("?")[0] for link in _LINK.findall(page.read_text())]
            assert not [link for link in links if not (page.parent / link).exists()], page


def test_make_docs_builds_it() -> None:
    assert "mkdocs build --strict" in (ROOT / "Makefile").read_text()
    assert "site/" in (ROOT / ".gitignore").read_text().splitlines()
