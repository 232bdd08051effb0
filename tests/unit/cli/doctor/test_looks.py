"""What each look at a machine makes of what it finds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from viiwork_core.cli.doctor import binaries, clock, configuration, gpus, mesh, node, saturation
from viiwork_core.cli.doctor.api import Api, Reply
from viiwork_core.cli.doctor.situation import Machine, Running, Situation, split
from viiwork_core.config.load import parse_config
from viiwork_core.config.schema import Config
from viiwork_core.contracts.doctor import Finding, Level
from viiwork_core.contracts.engine import Vendor
from viiwork_core.engines.commands import Commands
from viiwork_core.engines.gpus.gpu import Gpu
from viiwork_core.engines.gpus.whereabouts import Whereabouts
from viiwork_core.errors import ConfigError
from viiwork_core.registry.entry_points import load_plugins
from viiwork_core.registry.options import resolve
from viiwork_core.setup import programs, timekeeping

OK, WARNING, PROBLEM = Level.OK, Level.WARNING, Level.PROBLEM
CARD = Gpu(0, Vendor.NVIDIA, name="RTX", memory_total=24576)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _plugins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An engine of a stranger's, installed as by pip."""
    info = tmp_path / "site" / "fakes-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fakes\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[viiwork]\nfake = viiwork_core.testing.fake_plugin\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("VIIWORK_PLUGINS", "fake")
    monkeypatch.setenv("HOME", str(tmp_path))


def config(text: str, folder: Path) -> Config:
    return parse_config(f"node: {{name: a, state_dir: '{folder}/state'}}\nmesh: {{network: none}}\n{text}", {})


def model(path: Path | None = None, more: str = "") -> str:
    where = "" if path is None else f"path: '{path}', "
    return f"models: [{{name: m, engine: fake, context: 4096, {where}{more}}}]"


def machine(text: str, folder: Path) -> Machine:
    read, registry = config(text, folder), load_plugins(os.environ)
    return Machine(read, registry, resolve(read, registry))


def situation(text: str, folder: Path) -> Situation:
    return Situation(os.environ, 5, machine(text, folder), None)


def running(*members: dict[str, Any], models: Sequence[dict[str, Any]] = ()) -> Running:
    status = {"node": "a", "node_id": "1", "ver": "0.1.0", "mesh": "secured", "api_port": 1, "models": models}
    return Running(Api("http://127.0.0.1:1", 1), status, {"members": [{"node": "a", "node_id": "1"}, *members]})


def member(**more: Any) -> dict[str, Any]:
    return {"node": "b", "node_id": "2", "addr": "10.0.0.2:8086", "state": "alive", "ver": "0.1.0", "age_ms": 5} | more


def told(found: Sequence[Finding]) -> list[tuple[Level, str]]:
    return [(one.level, one.what) for one in found]


def has(found: Sequence[Finding], level: Level, words: str) -> Finding:
    (one,) = [each for each in found if each.level is level and words in each.what]
    return one


def test_a_finding_needs_a_remedy() -> None:
    with pytest.raises(ValueError, match="a warning needs a remedy"):
        Finding(WARNING, "it rattles")
    assert Finding(OK, "it runs").remedy == ""


def test_a_sentence_is_split_before_its_remedy() -> None:
    assert split("a; b; c", "d") == ("a; b", "c")
    assert split("a", "d") == ("a", "d")
    assert split("a;  ", "d") == ("a;  ", "d"), "a finding without a remedy cannot be made"


# Configuration and files


def test_each_line_of_a_bad_configuration_is_a_problem() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config("api: {port: 70000}\nmodels: [{name: m}]", {})
    found = configuration.refusals(caught.value, Path("v.yaml"))
    assert len(found) >= 2
    assert all(one.level is PROBLEM and one.remedy for one in found)


@pytest.mark.anyio
async def test_keys_without_meaning_and_caches_that_stay(tmp_path: Path) -> None:
    text = "power: {source: auto}\n" + model(more="kv_share: {group: g}")
    found = await configuration.configuration(situation(text, tmp_path))
    has(found, OK, "node a, models: m on fake")
    has(found, WARNING, "power")
    has(found, WARNING, "the caches of m are not shared")


@pytest.mark.anyio
async def test_caches_that_are_never_saved(tmp_path: Path) -> None:
    text = model(more="kv_share: {group: g, min_tokens: 9000}")
    read = parse_config(f"mesh: {{network: seeds, seeds: ['10.0.0.1:7946']}}\n{text}", {})
    registry = load_plugins(os.environ)
    found = await configuration.configuration(Situation({}, 5, Machine(read, registry, resolve(read, registry)), None))
    has(found, WARNING, "the caches of m are never saved")


@pytest.mark.anyio
async def test_a_plugin_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site" / "fakes-1.dist-info" / "entry_points.txt").write_text("[viiwork]\nbroken = no_such_module_x\n")
    monkeypatch.setenv("VIIWORK_PLUGINS", "broken")
    found = await configuration.configuration(situation("", tmp_path))
    assert "VIIWORK_BLOCK" in has(found, WARNING, "the plugin broken failed to load").remedy


@pytest.mark.anyio
async def test_a_model_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "m.bin"
    path.write_bytes(b"x")
    has(await configuration.files(situation(model(path), tmp_path)), OK, "m: 1 file, 0.0 GiB")


@pytest.mark.anyio
async def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    found = await configuration.files(situation(model(tmp_path / "m.bin"), tmp_path))
    has(found, PROBLEM, "does not exist")


@pytest.mark.anyio
async def test_a_model_that_is_empty(tmp_path: Path) -> None:
    (tmp_path / "m.bin").touch()
    has(await configuration.files(situation(model(tmp_path / "m.bin"), tmp_path)), PROBLEM, "is empty")


@pytest.mark.anyio
@pytest.mark.parametrize("whole_folder", [False, True])
async def test_all_parts_of_a_model(tmp_path: Path, whole_folder: bool) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    parts = [folder / f"big-0000{number}-of-00003.bin" for number in (1, 2, 3)]
    for part in parts:
        part.write_bytes(b"x")
    path = folder if whole_folder else parts[0]
    has(await configuration.files(situation(model(path), tmp_path)), OK, "m: 3 files")
    parts[1].unlink()
    has(await configuration.files(situation(model(path), tmp_path)), PROBLEM, "lacks big-00002-of-00003.bin")


@pytest.mark.anyio
async def test_a_folder_without_files(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    has(await configuration.files(situation(model(tmp_path / "model"), tmp_path)), PROBLEM, "lacks any file")


@pytest.mark.anyio
async def test_a_large_model_needs_patience(tmp_path: Path) -> None:
    path = tmp_path / "m.bin"
    with path.open("wb") as file:
        file.truncate(configuration.LARGE + 1)  # takes no room
    has(await configuration.files(situation(model(path), tmp_path)), WARNING, "may take longer to load")
    patient = model(path, "startup_timeout: 45m")
    assert WARNING not in {one.level for one in await configuration.files(situation(patient, tmp_path))}


@pytest.mark.anyio
async def test_a_state_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    found = await configuration.files(situation("", tmp_path))
    has(found, PROBLEM, f"this user cannot write into {tmp_path}/state")


@pytest.mark.anyio
async def test_caches_larger_than_the_disk(tmp_path: Path) -> None:
    text = model(more="kv_share: {group: g, max_gib: 10000000}")
    has(await configuration.files(situation(text, tmp_path)), WARNING, "kv_share may fill 2e+07 GiB")


# Programs


@pytest.mark.anyio
async def test_programs(tmp_path: Path) -> None:
    found = await binaries.binaries(situation(model(), tmp_path))
    has(found, OK, "m/0: could be started")
    has(found, OK, "runs: Python 3")


@pytest.mark.anyio
async def test_a_backend_that_cannot_be_started(tmp_path: Path) -> None:
    found = await binaries.binaries(situation(model(more="gpus: [0]"), tmp_path))
    assert {one.level for one in found} <= {OK}
    text = "models: [{name: m, engine: external, context: 10, external: {urls: ['http://127.0.0.1:9']}}]"
    has(await binaries.binaries(situation(text, tmp_path)), OK, "m/0: attached to http://127.0.0.1:9")


def test_what_engines_say() -> None:
    lines = [
        binaries.CommandLine("m/0", ("x",), advice=("too long; shorten it",)),
        binaries.CommandLine("m/1", ("x",), advice=("too long; shorten it",)),
        binaries.CommandLine("n", problem="no file; fetch it"),
    ]
    found = list(binaries._starts(lines))
    assert has(found, WARNING, "m/0, m/1: too long").remedy == "shorten it"
    assert has(found, PROBLEM, "n: no file").remedy == "fetch it"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("#!/bin/sh\necho lib.so: cannot open shared object file; exit 127\n", "cannot open shared object"),
        ("#!/bin/sh\nkill -9 $$\n", "it ended with"),
        ("#!/nowhere/interpreter\n", "does not run"),
    ],
)
async def test_a_program_that_does_not_run(tmp_path: Path, text: str, words: str) -> None:
    program = tmp_path / "engine"
    program.write_text(text)
    program.chmod(0o755)
    found = await programs.runs(str(program), Commands("doctor").run)
    assert found.level is PROBLEM
    assert words in found.what
    program.write_text("#!/bin/sh\necho what?; exit 2\n")
    assert (await programs.runs(str(program), Commands("doctor").run)).level is OK


# Cards


def cards(text: str, vendor: Vendor, found: tuple[Gpu, ...] | None) -> list[Finding]:
    read = parse_config(f"mesh: {{network: none}}\n{text}", {})
    return list(gpus.compared(read, vendor, found))


PINNED = "models: [{name: m, engine: fake, context: 1, gpus: [0, 1]}]"


def test_cards() -> None:
    assert told(cards("", Vendor.NONE, ())) == [(OK, "no GPU is here, and none is asked for")]
    has(cards(PINNED, Vendor.NONE, ()), PROBLEM, "no GPU is found here, and m is to run on some")
    has(cards(PINNED, Vendor.AMD, None), WARNING, "the amd cards could not be read")
    one = cards(PINNED, Vendor.NVIDIA, (CARD,))
    has(one, OK, "1 nvidia card: 0 RTX, 24576 MiB")
    assert has(one, PROBLEM, "m is to run on GPU 1, which is not here").remedy.endswith("here are 0")
    has(cards(PINNED, Vendor.NVIDIA, (CARD, Gpu(1, Vendor.NVIDIA))), OK, "m is pinned to GPU 0, 1")
    env = "models: [{name: m, engine: fake, context: 1, gpus: [0], env: {CUDA_VISIBLE_DEVICES: '1'}}]"
    has(cards(env, Vendor.NVIDIA, (CARD,)), WARNING, "CUDA_VISIBLE_DEVICES in env wins")
    named = cards(f"gpu: {{vendor: amd}}\n{PINNED}", Vendor.AMD, None)
    assert "gpu.vendor says amd" in named[0].remedy


def test_where_backends_are() -> None:
    levels = {where: gpus._place("m/0", "0", "1", where).level for where in Whereabouts}
    assert levels == {
        Whereabouts.RIGHT: OK,
        Whereabouts.FEWER: WARNING,
        Whereabouts.WRONG: PROBLEM,
        Whereabouts.UNKNOWN: OK,
    }
    backend = {"id": "m/0", "gpus": [0], "pid": os.getpid()}
    found = list(gpus._placed([{"backends": [backend]}], {os.getpid(): frozenset({1})}))
    assert told(found) == [(PROBLEM, "m/0 computes on GPU 1, and its own are 0")]


# Clocks


def test_this_clock() -> None:
    now = float(timekeeping.OLDEST + 1000)
    assert timekeeping.judged(0.0, True, in_mesh=False).level is PROBLEM
    assert timekeeping.judged(now, False, in_mesh=True).level is WARNING
    assert timekeeping.judged(now, False, in_mesh=False).level is OK
    assert timekeeping.judged(now, None, in_mesh=True).level is OK
    assert "and is synchronised" in timekeeping.judged(now, True, in_mesh=True).what
    assert timekeeping.kept() in {True, False, None}


@pytest.mark.anyio
@pytest.mark.parametrize(("skew", "level"), [(0, OK), (-59, OK), (61, WARNING), (-90, WARNING), (121, PROBLEM)])
async def test_the_clocks_of_members(skew: int, level: Level) -> None:
    (found,) = await clock.clock(Situation({}, 5, None, running(member(clock_skew_s=skew))))
    assert found.level is level
    assert "the clock of b" in found.what
    assert await clock.clock(Situation({}, 5, None, running(member()))) == []


# Nodes and members


def test_members() -> None:
    def level(**more: Any) -> list[Level]:
        return [one.level for one in mesh._membership(running(member(**more)))]

    assert level() == [OK]
    assert level(state="suspect") == [WARNING]
    assert level(stale=True) == [PROBLEM]
    assert level(ver="0.0.9") == [OK, WARNING]


@pytest.mark.anyio
async def test_a_member_that_cannot_be_asked() -> None:
    here = running()
    async with here.api:
        seen = await mesh._seen_by(here, member(addr="127.0.0.1:9"))
    assert seen.level is PROBLEM
    assert "b cannot be asked what it sees" in seen.what


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("own", "level", "words"),
    [
        ([], PROBLEM, "b does not know this node"),
        (
            [{"node_id": "1", "addr": "10.0.0.1:8086", "age_ms": 1, "stale": True}],
            PROBLEM,
            "does not reach this node's",
        ),
        ([{"node_id": "1", "age_ms": 1}], OK, "b reaches this node's API"),
    ],
)
async def test_what_a_member_sees(own: list[dict[str, Any]], level: Level, words: str) -> None:
    class Told(Api):
        async def get(self, path: str, *, at: str | None = None) -> Any:
            assert (path, at) == ("/v1/cluster", "10.0.0.2:8086")
            return {"members": own}

    here = running()
    seen = await mesh._seen_by(Running(Told("http://x", 1), here.status, here.cluster), member())
    assert seen.level is level
    assert words in seen.what


@pytest.mark.parametrize(
    ("state", "more", "level"),
    [
        ("healthy", {}, OK),
        ("healthy", {"respawns": 2}, WARNING),
        ("starting", {"phase": "loading"}, WARNING),
        ("draining", {}, OK),
        ("unhealthy", {"reason": "silent\nfor long"}, PROBLEM),
        ("dead", {}, PROBLEM),
    ],
)
def test_backends(state: str, more: dict[str, Any], level: Level) -> None:
    backend = {"id": "m/0", "status": state, "respawns": 0, "busy": 0, "slots": 2} | more
    found = node._backend(backend)
    assert found.level is level
    assert "\n" not in found.what


@pytest.mark.anyio
async def test_a_node_of_another_version(tmp_path: Path) -> None:
    here = running()
    old = Running(here.api, {**here.status, "ver": "0.0.1"}, here.cluster)
    found = await node.node(Situation({}, 5, machine("", tmp_path), old))
    has(found, WARNING, "a runs viiwork 0.0.1, and ")


# Saturation


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("statuses", "level", "words"),
    [
        ([200, 200, 200], OK, "all answered, 1 waited"),
        ([200, 200, 429], WARNING, "1 waited in vain (429)"),
        ([200, 503, 200], PROBLEM, "one was answered 503"),
        ([200, 200, 0], PROBLEM, "1 got no answer"),
    ],
)
async def test_a_model_that_is_filled(statuses: list[int], level: Level, words: str) -> None:
    left = list(statuses)

    class Told(Api):
        async def ask(self, body: Any, **more: Any) -> Reply:
            status = left.pop()
            if not status:
                raise ConfigError("no answer")
            return Reply(status, {"X-Viiwork-Queued-Ms": "30" if not left else "0"}, {}, 0.1)

    here = running(models=[{"name": "m", "slots": 2, "backends": []}])
    (found,) = await saturation.saturation(Situation({}, 5, None, Running(Told("http://x", 1), here.status, {})))
    assert found.level is level
    assert words in found.what
