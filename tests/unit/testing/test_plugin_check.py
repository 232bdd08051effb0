"""What `viiwork plugin check` tells of plugins with a case of their own, without one, and of broken ones."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from viiwork_core.cli.main import cli

Check = Callable[..., Result]

ENGINE = """
from viiwork_core.testing.fake_plugin import FakeEngine, FakeOptions

class Mine(FakeEngine):
    name = "mine"

@hookimpl
def viiwork_register_engine(): return Mine
"""
POLICY = """
class Options(PluginOptions):
    last: str = "b"

class Mine(Policy):
    name = "mine"
    Options = Options
    def rank(self, query, candidates, rng):
        return sorted((one.id for one in candidates), key=lambda id_: (id_ == self.options.last, id_))

@hookimpl
def viiwork_register_policy(): return Mine
"""
DISCOVERY = """
class Mine(Discovery):
    name = "mine"
    Options = type("Options", (PluginOptions,), {"__annotations__": {"at": "str"}, "at": "127.0.0.2:7946"})
    async def announce(self, card): ...
    async def sightings(self): yield Sighting(self.options.at, "mine")

@hookimpl
def viiwork_register_discovery(): return Mine
"""
CACHE = """
from viiwork_core.testing.fake_plugin import FakeCacheTransfer

class MyCache(FakeCacheTransfer):
    engine = "mine"

@hookimpl
def viiwork_register_cache_transfer(): return MyCache
"""


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """check(source, *words) installs the plugin `mine` of that text and checks it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("VIIWORK_PLUGINS", "mine")

    def run(source: str, *words: str) -> Result:
        module = f"checked_{abs(hash(tmp_path)):x}"
        (tmp_path / f"{module}.py").write_text(f"from viiwork_core import *\n{textwrap.dedent(source)}")
        info = tmp_path / "viiwork_mine-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: viiwork-mine\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[viiwork]\nmine = {module}\n")
        return CliRunner().invoke(cli, ["plugin", "check", *(words or ("mine",))])

    return run


def verdicts(result: Result) -> dict[int, str]:
    """Each clause's, by its number."""
    told = re.findall(r"^    (\d+) +(pass|fail|not checked) ", result.output, re.M)
    return {int(number): word for number, word in told}


@pytest.mark.parametrize("words", [("mine",), ("viiwork-mine",), ("VIIWORK_MINE",), ("--options", "{}")])
def test_a_policy_is_tried_with_its_defaults(check: Check, words: tuple[str, ...]) -> None:
    result = check(POLICY, *words)
    assert result.exit_code == 0, result.output
    assert verdicts(result) == dict.fromkeys(range(1, 12), "pass")
    assert "viiwork-mine 1.2\n  load     pass         policy mine\n" in result.output
    assert "11 pass, 0 fail, 0 not checked" in result.output


def test_a_broken_clause_is_told_with_its_reason(check: Check) -> None:
    result = check(POLICY.replace("sorted((one.id for one in candidates), key", "sorted(['x'], key"))
    assert result.exit_code == 1
    assert verdicts(result)[3] == "fail"
    assert "ranks what is no candidate: ['x']" in result.output


def test_options_are_taken_and_judged(check: Check) -> None:
    result = check(POLICY, "mine", "--options", '{"last": 7}')
    assert "options  not checked" in result.output
    assert "last: Input should be a valid string" in result.output
    assert result.exit_code == 0


def test_options_that_are_needed_are_asked_for(check: Check) -> None:
    result = check(POLICY.replace('last: str = "b"', "last: str"))
    assert "options  not checked  give some with --options, or a case in VIIWORK_KIT" in result.output
    assert "last: Field required" in result.output


@pytest.mark.parametrize(("words", "problem"), [("{", "is not JSON"), ("[]", "is not a JSON object")])
def test_options_are_an_object(check: Check, words: str, problem: str) -> None:
    result = check(POLICY, "mine", "--options", words)
    assert result.exit_code == 2
    assert problem in result.output


def test_the_fake_engine_stands_in_for_an_engines_program(check: Check) -> None:
    launch = '    def launch(self, spec): return Launch(("no-such-program", *spec.args))'
    result = check(ENGINE.replace('name = "mine"', f'name = "mine"\n{launch}'))
    assert result.exit_code == 0, result.output
    assert set(verdicts(result).values()) == {"pass"}


def test_what_needs_a_model_is_not_checked_without_one(check: Check) -> None:
    launch = '    def launch(self, spec): raise ConfigError("models[tiny].path: is missing")'
    result = check(ENGINE.replace('name = "mine"', f'name = "mine"\n{launch}'))
    assert result.exit_code == 0, result.output
    assert {number for number, word in verdicts(result).items() if word == "not checked"} == {3, 4, 23}
    assert "models[tiny].path: is missing; name a model with --path" in result.output


def test_an_engine_that_does_not_take_the_fake_is_not_tried_with_it(check: Check) -> None:
    load = """
    async def load(self, spec, address):
        await self._client.send("GET", address, "/health")
        raise EngineRefused("this is another program")
"""
    result = check(ENGINE.replace('name = "mine"', f'name = "mine"\n{load}'))
    assert result.exit_code == 0, result.output
    assert {number for number, word in verdicts(result).items() if word == "not checked"} == {*range(9, 22), 24, 25}
    assert "the fake engine is none of its own (this is another program)" in result.output


def test_a_model_starts_the_program(check: Check, tmp_path: Path) -> None:
    (tmp_path / "model").touch()
    result = check(ENGINE, "mine", "--path", str(tmp_path / "model"), "--options", '{"exit_at_start": true}')
    assert result.exit_code == 1
    assert verdicts(result)[9] == "fail"
    assert "told to exit at start" in result.output


def test_a_discovery_is_opened_only_when_it_is_told_where_to_look(check: Check) -> None:
    assert {number for number, word in verdicts(check(DISCOVERY)).items() if word == "pass"} == {1, 2, 3}


def test_a_discovery_that_is_told_where_to_look_is_tried(check: Check) -> None:
    result = check(DISCOVERY, "mine", "--options", '{"at": "nowhere"}')
    assert verdicts(result)[7] == "fail"
    assert "'nowhere' is not ip:port" in result.output


def test_a_kind_without_a_kit_is_loaded_and_no_more(check: Check) -> None:
    result = check("""
        class Mine(DoctorCheck):
            name = "mine"
            async def run(self, context): return []

        @hookimpl
        def viiwork_register_doctor_check(): return Mine
    """)
    assert result.exit_code == 0, result.output
    assert "there is none for this kind" in result.output


def test_a_cache_transfer_needs_a_case(check: Check) -> None:
    result = check(ENGINE + CACHE)
    assert result.exit_code == 0, result.output
    assert "0 pass, 0 fail, 13 not checked" in result.output
    assert result.output.count("is for VIIWORK_KIT to say") == 1


@pytest.mark.parametrize(
    ("kit", "problem"),
    [
        ("nowhere_at_all:cases", "ModuleNotFoundError"),
        ("viiwork_core.testing.fake_plugin:cases", "AttributeError"),
        ("viiwork_core.testing.engine_kit:kit_context", "TypeError"),
        ("builtins:str", "returned '/', which is no case of a kit"),
    ],
)
def test_a_case_that_cannot_be_had_is_told(check: Check, kit: str, problem: str) -> None:
    result = check(f"{POLICY}\nVIIWORK_KIT = {kit!r}\n")
    assert result.exit_code == 1
    assert "  cases    fail" in result.output
    assert problem in result.output


def test_what_does_not_load_is_told(check: Check) -> None:
    result = check("raise RuntimeError('no luck')")
    assert result.exit_code == 1
    assert "load     fail         failed: import failed: RuntimeError: no luck" in result.output


def test_what_is_not_installed_is_told(check: Check) -> None:
    result = check(POLICY, "nobody")
    assert result.exit_code == 1
    assert "no plugin nobody is installed (installed: viiwork" in result.output
    assert "remedy: install it" in result.output


def test_a_plugin_that_was_left_out_is_no_success(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIIWORK_BLOCK", "mine")
    result = check(POLICY)
    assert result.exit_code == 1
    assert "blocked: named in VIIWORK_BLOCK" in result.output
