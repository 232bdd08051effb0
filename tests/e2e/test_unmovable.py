"""Models whose restored caches a real llama-server does not use: seen in the file, or else in what turns reused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dialogue import COLD, LONG, WARM, Conversation
from hosts import Hosts
from mesh import FIRST, SECOND, Mesh, tiny, two_nodes
from nodes import MODEL, SECRET, Node, prose, until
from odd_models import WINDOW, write_hybrid, write_sliding

pytestmark = pytest.mark.slow

OFF = "caches of a backend are not shared"


def command(node: Node, *words: str) -> subprocess.CompletedProcess[str]:
    """`viiwork` beside a node."""
    program = [str(Path(sys.executable).with_name("viiwork")), *words, "--config", str(node.folder / "viiwork.yaml")]
    environ = {"PATH": os.environ["PATH"], "HOME": str(node.folder), SECRET: node.secret, "COLUMNS": "200"}
    with node.host.inside():
        return subprocess.run(program, env=environ, capture_output=True, text=True, check=False, timeout=60)


def mark(node: Node) -> dict[str, Any]:
    """The model's part in kv_share, as the dashboard shows it."""
    (model,) = node.get("/v1/status").json["models"]
    return dict(model["kv_share"])


def served(mesh: Mesh) -> None:
    for node in (mesh.first, mesh.second):
        until(node.healthy, f"{node.name} is healthy\n{node.log()}")
    until(lambda: mesh.first.members() == {SECOND}, "they know each other")


@pytest.mark.parametrize(
    ("write", "words"), [(write_sliding, f"a sliding window of {WINDOW} tokens"), (write_hybrid, "recurrent or hybrid")]
)
def test_what_its_file_says_is_told_once_and_nothing_is_saved(
    pair: Hosts, llama_server: None, tmp_path: Path, write: Callable[[Path], Path], words: str
) -> None:
    with two_nodes(pair, write(tmp_path / "odd.gguf"), tmp_path, ready=False) as mesh:
        served(mesh)
        (warning,) = mesh.first.heard(OFF)
        assert words in warning["reason"]
        until(lambda: mark(mesh.first)["state"] == "off", "the mark is off")
        assert words in mark(mesh.first)["reason"]
        assert mesh.first.get("/v1/capacity").json["models"][0].get("kv") is None

        session = Conversation(mesh, "odd")
        session.say(prose(LONG, seed=1), on=FIRST)
        moved = session.say("And what came after that?", on=SECOND)
        assert moved.warmth < COLD
        assert moved.text == session.afresh()
        assert not list((mesh.first.folder / "state" / "kv").rglob("*.save"))
        assert mesh.second.replicas() == {}
        assert len(mesh.first.events(OFF)) == 1
        assert not mesh.first.events("kv save failed")

        stats = command(mesh.first, "kv", "stats").stdout
        assert words in stats
        found = json.loads(command(mesh.first, "doctor", "--json", "--only", "kv_share").stdout)
        assert [one["level"] for one in found] == ["warning"], found
        assert words in found[0]["what"]


def test_with_swa_full_a_sliding_window_moves(pair: Hosts, llama_server: None, tmp_path: Path) -> None:
    def whole(path: Path, **kv_share: object) -> dict[str, Any]:
        return {**tiny(path, **kv_share), "args": ["--swa-full"]}

    with two_nodes(pair, write_sliding(tmp_path / "odd.gguf"), tmp_path, model=whole) as mesh:
        moving, staying = Conversation(mesh, "moving"), Conversation(mesh, "staying")
        for session in (moving, staying):
            session.say(prose(LONG, seed=1), on=FIRST)
        moving.arrived(mesh.second, turn=1)
        second = moving.say("And what came after that?", on=SECOND)
        assert second.warmth >= WARM
        assert staying.say("And what came after that?", on=FIRST).text == second.text

        # What was said is changed inside the last window: a restored cache would be read from a hole.
        moving.say(prose(LONG, seed=2), on=FIRST)
        moving.arrived(mesh.second, turn=3)
        moving.messages[-1] = {"role": "assistant", "content": "Something else."}
        third = moving.say("And then?", on=SECOND)
        assert third.text == moving.afresh()
        (failure,) = mesh.second.events("kv import failed", session=moving.key)
        assert "shares 0 of the replica" in failure["reason"]


def test_two_useless_restores_say_it_too(pair: Hosts, llama_server: None, tmp_path: Path) -> None:
    def blind(path: Path, **kv_share: object) -> dict[str, Any]:
        entry = {**tiny(path, **kv_share), "engine": "blind", "blind": {"threads": 1}}
        return {key: value for key, value in entry.items() if key != "llamacpp"}

    site = tmp_path / "site"
    info = site / "blind-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: blind\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[viiwork]\nblind = blind_plugin\n")
    path = os.pathsep.join((str(site), str(Path(__file__).parent)))
    model = write_sliding(tmp_path / "odd.gguf")
    with two_nodes(pair, model, tmp_path, model=blind, PYTHONPATH=path, VIIWORK_PLUGINS="llamacpp,blind") as mesh:
        for number in (1, 2):
            assert mark(mesh.second)["state"] == "on"
            session = Conversation(mesh, f"useless {number}")
            session.say(prose(LONG, seed=number), on=FIRST)
            session.arrived(mesh.second, turn=1)
            moved = session.say("And what came after that?", on=SECOND)
            mesh.second.heard("kv import useless", session=session.key)
            assert moved.warmth < COLD
            assert moved.text == session.afresh()
        (warning,) = mesh.second.heard("kv_share is off for a model", model=MODEL)
        assert "sliding window or recurrent layers" in warning["reason"]
        assert "--swa-full" in warning["remedy"]
        told = mark(mesh.second)
        assert (told["state"], told["imported"], told["useless"]) == ("off", 2, 2)

        def unsent() -> bool:
            (model,) = mesh.second.get("/v1/capacity").json["models"]
            return model.get("kv") is None

        assert unsent(), "nothing is sent here any more"
        session.say("And once more?", on=SECOND)
        assert len(mesh.second.events("kv_share is off for a model")) == 1
