"""The kits as test classes: each clause is a test, a broken one fails, and the engine is started once."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

Run = Callable[[str], dict[str, int]]

HEAD = """
import asyncio
from pathlib import Path

import pytest

from viiwork_core import *
from viiwork_core.builtin.policies import LeastBusy
from viiwork_core.builtin.seeds import Seeds, SeedsOptions
from viiwork_core.testing.cache_kit import CacheCase
from viiwork_core.testing.discovery_kit import DiscoveryCase
from viiwork_core.testing.engine_kit import EngineCase, kit_context
from viiwork_core.testing.fake_plugin import FakeCacheTransfer, FakeEngine, FakeOptions
from viiwork_core.testing.policy_kit import PolicyCase
from viiwork_core.testing.pytest_kits import CacheKit, DiscoveryKit, EngineKit, PolicyKit
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """run(source) runs a file of tests, and returns how many ended how."""

    def ended(source: str) -> dict[str, int]:
        (tmp_path / "test_it.py").write_text(HEAD + textwrap.dedent(source))
        (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"]
        told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
        return {what: int(number) for number, what in re.findall(r"(\d+) (\w+)", told.splitlines()[-1])}

    return ended


def test_each_clause_of_a_sound_plugin_passes(run: Run) -> None:
    assert (
        run("""
        class TestPolicy(PolicyKit):
            @pytest.fixture
            def case(self): return PolicyCase(LeastBusy)

        class TestDiscovery(DiscoveryKit):
            @pytest.fixture
            def case(self, tmp_path): return DiscoveryCase(Seeds, SeedsOptions(), kit_context(tmp_path))
    """)["passed"]
        == 21
    )


def test_a_broken_clause_fails_alone(run: Run) -> None:
    ended = run("""
        class Unsorted(LeastBusy):
            def rank(self, query, candidates, rng): return [one.id for one in candidates]

        class TestPolicy(PolicyKit):
            @pytest.fixture
            def case(self): return PolicyCase(Unsorted)
    """)
    assert (ended["passed"], ended["failed"]) == (10, 1)


def test_what_was_not_checked_is_skipped(run: Run) -> None:
    ended = run("""
        class TestEngine(EngineKit):
            @pytest.fixture
            def case(self, tmp_path):
                spec = Spec("tiny", 0, 1, None, context=4096, parallel=2)
                return EngineCase(FakeEngine, FakeOptions(exit_at_start=True), spec, kit_context(tmp_path))
    """)
    assert (ended["passed"], ended["failed"], ended["skipped"]) == (12, 1, 14)


def test_an_engine_and_its_case_are_made_once(run: Run) -> None:
    ended = run("""
        made = []

        class TestEngine(EngineKit):
            @pytest.fixture
            def case(self, tmp_path):
                made.append(self)
                spec = Spec("tiny", 0, 1, None, context=4096, parallel=2)
                return EngineCase(FakeEngine, FakeOptions(), spec, kit_context(tmp_path))

        def test_once(): assert len(made) == 1
    """)
    assert ended["passed"] == 28


def test_two_classes_do_not_share_verdicts(run: Run) -> None:
    ended = run("""
        class Unsorted(LeastBusy):
            def rank(self, query, candidates, rng): return [one.id for one in candidates]

        class TestSound(PolicyKit):
            @pytest.fixture
            def case(self): return PolicyCase(LeastBusy)

        class TestBroken(TestSound):
            @pytest.fixture
            def case(self): return PolicyCase(Unsorted)
    """)
    assert (ended["passed"], ended["failed"]) == (21, 1)


def test_a_class_without_a_case_says_so(run: Run) -> None:
    assert run("class TestPolicy(PolicyKit): ...")["errors"] == 11
