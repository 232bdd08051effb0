"""The pages for plugin authors are what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from viiwork_core.contracts.version import API_MAJOR, API_MINOR
from viiwork_core.testing import pages
from viiwork_core.testing.surface import hooks, listing

ROOT = Path(__file__).parents[2]
PLUGINS = ROOT / "docs" / "plugins"
ANEW = "the contract has changed: run `make docs`"


def test_the_page_of_hooks_is_up_to_date() -> None:
    assert (PLUGINS / "hooks.md").read_text() == pages.hooks_page(), ANEW


def test_the_page_of_clauses_is_up_to_date() -> None:
    page = (PLUGINS / "testing.md").read_text()
    assert set(re.findall(r"<!-- clauses of the (\w+) kit -->", page)) == pages.CLAUSES.keys()
    assert page == pages.with_clauses(page), ANEW


def test_the_listing_of_public_names_is_up_to_date() -> None:
    raised = f"{ANEW}; if plugins can tell, raise the number in viiwork_core/contracts/version.py too"
    assert (PLUGINS / "api.txt").read_text() == listing(), raised


def test_the_listing_begins_with_the_number() -> None:
    assert listing().startswith(f"Plugin API {API_MAJOR}.{API_MINOR}\n")


def test_the_listing_is_alike_everywhere() -> None:
    assert not re.search(r" at 0x|<[a-z]|'type|/site-packages/", listing())


@pytest.mark.parametrize(("name", "hook"), hooks())
def test_a_hooks_docstring_answers_everything(name: str, hook: object) -> None:
    first, sections = pages.read_hook(hook)
    assert first.endswith("."), name
    assert tuple(sections) == pages.SECTIONS


def test_make_docs_writes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (command,) = re.findall(
        r"\$\(BIN\)/python -m viiwork_core\.testing\.pages (\S+)$", (ROOT / "Makefile").read_text(), re.M
    )
    assert ROOT / command == PLUGINS
    (tmp_path / "testing.md").write_text("<!-- clauses of the policy kit -->\n<!-- end -->\n")
    monkeypatch.setattr("sys.argv", ["pages", str(tmp_path)])
    pages.main()
    assert {file.name for file in tmp_path.iterdir()} == {"hooks.md", "api.txt", "testing.md"}
    assert "| 11 | explain returns text" in (tmp_path / "testing.md").read_text()


@pytest.mark.parametrize(
    "text", re.findall(r"^```python\n(.*?)^```", (PLUGINS / "testing.md").read_text(), re.M | re.S)
)
def test_the_code_of_the_page_runs(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "test_shown.py"
    path.write_text(text)
    if "PolicyKit" in text:
        assert (
            pytest.main(["-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "-c", "/dev/null", str(path)]) == 0
        )
        assert "11 passed" in capsys.readouterr().out
    else:
        exec(compile(text, str(path), "exec"), {})
        assert capsys.readouterr().out == ""


def test_the_pages_link_to_what_exists() -> None:
    for page in PLUGINS.glob("*.md"):
        links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
        assert not [link for link in links if not (page.parent / link).exists()], page.name
