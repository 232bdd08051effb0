"""Where state and configuration are by default."""

from __future__ import annotations

from pathlib import Path

from viiwork_core.config.paths import config_files, state_dir


def test_root_keeps_its_state_in_var_lib() -> None:
    assert state_dir({"XDG_STATE_HOME": "/x"}, uid=0) == Path("/var/lib/viiwork")


def test_others_keep_it_where_xdg_says() -> None:
    assert state_dir({"XDG_STATE_HOME": "/x"}, uid=1000) == Path("/x/viiwork")
    assert state_dir({"HOME": "/h"}, uid=1000) == Path("/h/.local/state/viiwork")


def test_a_relative_xdg_path_is_ignored() -> None:
    assert state_dir({"XDG_STATE_HOME": "x", "HOME": "/h"}, uid=1000) == Path("/h/.local/state/viiwork")


def test_the_users_own_configuration_comes_first() -> None:
    assert config_files({"HOME": "/h"}, uid=1000) == (
        Path("/h/.config/viiwork/viiwork.yaml"),
        Path("/etc/viiwork/viiwork.yaml"),
    )


def test_root_reads_the_machines_configuration_only() -> None:
    assert config_files({"HOME": "/h", "XDG_CONFIG_HOME": "/x"}, uid=0) == (Path("/etc/viiwork/viiwork.yaml"),)
