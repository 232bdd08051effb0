"""A conversation's cache moves between two real mlx_lm servers, and comes back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from dialogue import COLD, WARM, Conversation
from hosts import Hosts
from mesh import FIRST, SECOND, Mesh, tiny_mlx, two_nodes
from nodes import prose

from viiwork_core.testing.tiny_model import write_mlx

pytest.importorskip("viiwork_mlx", reason="the mlx plugin is not installed")
pytest.importorskip("mlx_lm", reason="mlx_lm is not installed for this Python")

LONG = 1500
"""Tokens: MLX has no GPU here."""


@pytest.fixture
def mlx_mesh(pair: Hosts, tmp_path: Path) -> Iterator[Mesh]:
    with two_nodes(pair, write_mlx(tmp_path / "model"), tmp_path, model=tiny_mlx) as made:
        yield made


def test_a_session_moves_and_comes_back(mlx_mesh: Mesh) -> None:
    """Beside it another session says the same and stays, which tells what the first node would have answered."""
    mesh = mlx_mesh
    moving, staying = Conversation(mesh, "moving"), Conversation(mesh, "staying")
    first = moving.say(prose(LONG, seed=1), on=FIRST)
    assert first.warmth < COLD
    moving.arrived(mesh.second, turn=1)
    assert staying.say(prose(LONG, seed=1), on=FIRST).text == first.text

    second = moving.say("And what came after that?", on=SECOND)
    assert second.headers["x-viiwork-origin"] == FIRST
    assert second.warmth >= WARM
    assert mesh.second.events("kv imported", session=moving.key, turn=1)
    assert staying.say("And what came after that?", on=FIRST).text == second.text

    # So long that without this turn's cache the first node would find under nine tenths of the next prompt.
    moving.say(prose(LONG // 2, seed=2), on=SECOND)
    moving.arrived(mesh.first, turn=3)
    assert moving.say("Was that all?", on=FIRST).warmth >= WARM
    assert mesh.first.events("kv imported", session=moving.key, turn=3)
