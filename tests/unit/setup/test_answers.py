"""The answers file: strict, and every mistake at once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import get_args

import pytest

from viiwork_core.errors import ConfigError
from viiwork_core.setup.answers import Answers, ServiceName, parse_answers, read_answers
from viiwork_core.setup.services import SERVICES

ALL = """
models_dir: /models
models:
  - {path: /models/a.bin, name: a, engine: acme, context: 4096, parallel: 2, gpus: [0, 1], gpus_per_backend: 2}
  - {path: /models/b, kv_share: house, options: {level: 3}}
node: {name: attic, state_dir: /srv/viiwork}
api: {host: 127.0.0.1, port: 8087}
mesh:
  mode: join
  code_file: /run/code
  name: home
  network: lan
  seeds: ["192.0.2.7:7946"]
  advertise: 192.0.2.8
  bind_port: 7947
kv_share: house
service: process
start: false
wait: 60
"""


def refused(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_answers(text)
    return caught.value.message.splitlines()


def test_nothing_is_all_defaults() -> None:
    assert parse_answers("") == parse_answers("models:\nmesh:\n") == Answers()
    assert (Answers().mesh.mode, Answers().models, Answers().start) == (None, None, True)


def test_every_key() -> None:
    answers = parse_answers(ALL)
    assert answers.models is not None
    assert [model.gpus for model in answers.models] == [(0, 1), None]
    assert (answers.mesh.mode, answers.mesh.code_file, answers.wait) == ("join", Path("/run/code"), 60)


def test_all_mistakes_are_told_with_their_lines() -> None:
    text = "model: 1\nmodels:\n  - {pat: x}\n  - {path: /a, context: 0}\nnode: {name: a b}\nmesh: {mode: shut}"
    text += "\nservice: upstart"
    assert refused(text) == [
        "model (line 1): unknown key; did you mean models?",
        "models[0].path (line 3): missing; add it",
        "models[0].pat (line 3): unknown key; did you mean path?",
        "models[1].context (line 4): must be greater than or equal to 1",
        "node.name (line 5): must be 1 to 253 of the characters A-Z a-z 0-9 . _ -",
        "mesh.mode (line 6): must be 'join', 'secured', 'open', 'alone' or 'keep'",
        "service (line 7): must be 'systemd', 'systemd-user', 'launchd', 'docker' or 'process'",
    ]


@pytest.mark.parametrize(
    ("mesh", "said"),
    [
        ("{mode: join}", "mesh.code (line 1): is missing; write one of code, code_file and code_env"),
        ("{mode: join, code: a, code_env: B}", "mesh.code (line 1): stands beside code_env; write one of code"),
        (
            "{mode: secured, code_file: /c}",
            "mesh.code_file (line 1): has no meaning with mode secured; write",
        ),
        ("{mode: open, seeds: [here]}", "mesh.seeds[0] (line 1): must be ip:port"),
    ],
)
def test_a_mesh_that_makes_no_sense(mesh: str, said: str) -> None:
    (line,) = refused(f"mesh: {mesh}")
    assert line.startswith(said)


def test_a_code_is_in_no_error_and_no_repr() -> None:
    answers = parse_answers("mesh: {mode: join, code: viiwork1-secret}")
    assert "secret" not in repr(answers)
    assert "viiwork1" not in "\n".join(refused("mesh: {mode: secured, code: viiwork1-hidden}"))


def test_a_file_that_is_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"#" * (1 << 21))
    (tmp_path / "bytes").write_bytes(b"\xff")
    said = {
        "gone": "cannot be read",
        "pipe": "is not a regular file",
        "large": "is over 1 MiB",
        "bytes": "is not UTF-8",
    }
    for name, what in said.items():
        with pytest.raises(ConfigError, match=what):
            read_answers(tmp_path / name)
    with pytest.raises(ConfigError, match="Is a directory"):
        read_answers(tmp_path)


def test_the_services_that_can_be_named_are_those_there_are() -> None:
    assert get_args(ServiceName) == tuple(kind.name for kind in SERVICES)


def test_a_mesh_that_is_kept_is_not_changed_besides() -> None:
    (line,) = refused("mesh: {mode: keep, name: other}")
    assert line.startswith("mesh.name (line 1): has no meaning with mode keep")
    (line,) = refused("mesh: {code: viiwork1-abc}")
    assert line.startswith("mesh.code (line 1): has no meaning without mode: join")
    assert "abc" not in line
