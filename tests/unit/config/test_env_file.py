"""The environment file beside the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from viiwork_core.config.env_file import read_env_file, with_env_file
from viiwork_core.errors import ConfigError


def test_it_is_read_as_systemd_and_docker_read_it(tmp_path: Path) -> None:
    file = tmp_path / "viiwork.env"
    file.write_text("# a comment\n; another\n\nA=1\n  B = two words \nC=\"quoted\"\nD='x=y'\nE=\nno pair\n")
    assert read_env_file(file) == {"A": "1", "B": "two words", "C": "quoted", "D": "x=y", "E": ""}


def test_there_need_be_none(tmp_path: Path) -> None:
    assert read_env_file(tmp_path / "viiwork.env") == {}
    assert with_env_file({"A": "1"}, None) == {"A": "1"}
    assert with_env_file({"A": "1"}, tmp_path / "viiwork.yaml") == {"A": "1"}


def test_the_environment_counts_before_it(tmp_path: Path) -> None:
    (tmp_path / "viiwork.env").write_text("A=file\nB=file\nC=file\n")
    assert with_env_file({"A": "shell", "B": ""}, tmp_path / "viiwork.yaml") == {"A": "shell", "B": "", "C": "file"}


@pytest.mark.parametrize("content", [b"A=\xff", b"A=" + b"x" * (70 << 10)], ids=["not text", "huge"])
def test_what_cannot_be_read_is_told_without_its_text(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "viiwork.env").write_bytes(content)
    with pytest.raises(ConfigError, match=r"viiwork\.env") as caught:
        read_env_file(tmp_path / "viiwork.env")
    assert "xxx" not in caught.value.message
    assert caught.value.remedy


def test_a_folder_of_that_name_is_told(tmp_path: Path) -> None:
    (tmp_path / "viiwork.env").mkdir()
    with pytest.raises(ConfigError, match=r"viiwork\.env"):
        read_env_file(tmp_path / "viiwork.env")
