"""Files before they are written: shown whole, without what is secret. And where they lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from viiwork_core.setup.locations import Locations
from viiwork_core.setup.written import WrittenFile


def test_secrets_are_masked_and_the_rest_is_shown_whole() -> None:
    file = WrittenFile(Path("/x"), "A=abcdef\nB=abc\nC=plain\n", secrets=("abc", "abcdef", ""))
    assert file.shown() == "A=***\nB=***\nC=plain\n"


def test_root_has_the_machines_folders() -> None:
    places = Locations.here({}, uid=0)
    assert places.system
    assert (places.config, places.environment) == (Path("/etc/viiwork/viiwork.yaml"), Path("/etc/viiwork/viiwork.env"))
    assert (places.state, places.records) == (Path("/var/lib/viiwork"), Path("/var/lib/viiwork-setup"))
    assert places.units == Path("/etc/systemd/system")


def test_others_have_folders_of_their_own() -> None:
    places = Locations.here({"HOME": "/home/somebody", "XDG_STATE_HOME": "/state"}, uid=1000)
    assert not places.system
    assert places.config == Path("/home/somebody/.config/viiwork/viiwork.yaml")
    assert places.units == Path("/home/somebody/.config/systemd/user")
    assert (places.state, places.records) == (Path("/state/viiwork"), Path("/state/viiwork-setup"))


@pytest.mark.parametrize("uid", [0, 1000])
def test_with_another_root_nothing_lies_outside_it(tmp_path: Path, uid: int) -> None:
    places = Locations.here({"HOME": str(tmp_path / "me")}, base=tmp_path, uid=uid)
    for name in ("config", "environment", "state", "records", "units", "accounts", "agents", "log", "home"):
        assert getattr(places, name).is_relative_to(tmp_path), name
    # A home that lies there already is not looked for one level deeper.
    assert places.home == tmp_path / "me"
