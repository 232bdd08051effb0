"""How a machine comes into a mesh, of what was answered."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from viiwork_core.config.document import dump
from viiwork_core.config.load import parse_config
from viiwork_core.errors import ConfigError
from viiwork_core.registry.entry_points import load_plugins
from viiwork_core.registry.registry import Registry
from viiwork_core.security.join_code import JoinCode, encode
from viiwork_core.security.secret import load_secret
from viiwork_core.setup.answers import MeshAnswer
from viiwork_core.setup.meeting import Meeting, arrange, earlier_meeting, finders

SECRET = bytes(range(32))


@pytest.fixture(scope="module")
def bare() -> Registry:
    """Without a discovery that looks by itself."""
    return load_plugins({"VIIWORK_PLUGINS": "builtin"})


def code(address: str = "192.0.2.7:7946", secret: bytes | None = SECRET) -> str:
    return encode(JoinCode(address, secret))


def test_alone(bare: Registry) -> None:
    meeting = arrange(MeshAnswer(), {}, bare)
    assert (meeting.block(), meeting.environment()) == ({"network": "none"}, {})


def test_a_code_brings_the_secret_and_a_seed(bare: Registry) -> None:
    meeting = arrange(MeshAnswer(mode="join", code=f" {code()}\n", seeds=("192.0.2.9:7946",)), {}, bare)
    assert meeting.block() == {"seeds": ["192.0.2.7:7946", "192.0.2.9:7946"]}
    assert meeting.environment() == {"VIIWORK_MESH_SECRET": base64.b64encode(SECRET).decode()}
    assert load_secret(meeting.environment(), variable="VIIWORK_MESH_SECRET", open_mesh=False) is not None
    assert "VIIWORK" not in repr(meeting)
    assert repr(SECRET) not in repr(meeting)


def test_a_code_of_an_open_mesh(bare: Registry) -> None:
    meeting = arrange(MeshAnswer(mode="join", code=code("[2001:db8::7]:7000", None), name="home"), {}, bare)
    assert meeting.block() == {"name": "home", "open": True, "seeds": ["[2001:db8::7]:7000"]}
    assert meeting.environment() == {}


def test_a_code_from_a_file_and_from_a_variable(bare: Registry, tmp_path: Path) -> None:
    (tmp_path / "code").write_text(code() + "\n")
    seeds = ("192.0.2.7:7946",)
    assert arrange(MeshAnswer(mode="join", code_file=tmp_path / "code"), {}, bare).seeds == seeds
    assert arrange(MeshAnswer(mode="join", code_env="CODE"), {"CODE": code()}, bare).seeds == seeds


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (MeshAnswer(mode="join", code=code()[:-4]), "cut off"),
        (MeshAnswer(mode="join", code=code().replace("viiwork1", "viiwork2")), "damaged|version"),
        (MeshAnswer(mode="join", code="hello"), "is not a join code"),
        (MeshAnswer(mode="join", code_file=Path("/no/such")), "mesh.code_file: /no/such cannot be read"),
        (MeshAnswer(mode="join", code_env="CODE"), "mesh.code_env: CODE is not set"),
        (MeshAnswer(mode="join", code=code("nowhere.invalid:7946")), "names nowhere.invalid, which is not known here"),
    ],
)
def test_a_code_that_leads_nowhere(bare: Registry, answer: MeshAnswer, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        arrange(answer, {}, bare)
    assert caught.value.remedy


def test_a_new_mesh_has_a_secret_of_its_own(bare: Registry) -> None:
    first, second = (arrange(MeshAnswer(mode="secured", advertise="192.0.2.1"), {}, bare) for _ in range(2))
    assert first.block() == {"network": "seeds", "advertise": "192.0.2.1"}
    assert first.secret is not None
    assert (len(first.secret), first.secret == second.secret) == (32, False)


def test_an_open_mesh(bare: Registry) -> None:
    block = arrange(MeshAnswer(mode="open", advertise="192.0.2.1", bind_port=7000), {}, bare).block()
    assert block == {"network": "seeds", "open": True, "advertise": "192.0.2.1", "bind_port": 7000}


def test_with_a_discovery_nothing_need_be_written_down() -> None:
    registry = load_plugins({})
    assert arrange(MeshAnswer(mode="secured"), {}, registry).block() == {}


@pytest.mark.parametrize(
    "meeting",
    [
        Meeting("alone"),
        Meeting("secured", SECRET, seeds=("192.0.2.7:7946",)),
        Meeting("open", network="seeds", name="home", advertise="192.0.2.1", bind_port=7000),
    ],
)
def test_the_configuration_reads_what_is_written(meeting: Meeting) -> None:
    mesh = parse_config(dump({"mesh": meeting.block()}), {}).mesh
    assert (mesh.network == "none") == (meeting.mode == "alone")
    if meeting.mode != "alone":
        read = (mesh.open, mesh.name, mesh.seeds, mesh.advertise, mesh.bind_port)
        assert read == (meeting.mode == "open", meeting.name, meeting.seeds, meeting.advertise, meeting.bind_port)


SECRET_TEXT = base64.b64encode(SECRET).decode()


def set_up(folder: Path, mesh: str, variables: str = f"VIIWORK_MESH_SECRET={SECRET_TEXT}\n") -> Path:
    """A configuration that is there, and the variables beside it."""
    (folder / "viiwork.env").write_text(variables)
    config = folder / "viiwork.yaml"
    config.write_text(f"node: {{name: attic}}\n{mesh}\n")
    return config


def test_the_mesh_that_a_machine_is_in_can_be_kept(bare: Registry, tmp_path: Path) -> None:
    """Whole, also what the answers have no key for, and the secret of before while it is changed."""
    block = {"name": "home", "seeds": ["192.0.2.7:7946"], "rejoin_interval": "30s", "secret_prev_env": "BEFORE"}
    both = f"VIIWORK_MESH_SECRET={SECRET_TEXT}\nBEFORE={base64.b64encode(bytes(32)).decode()}\nOTHER=1\n"
    earlier = earlier_meeting(set_up(tmp_path, dump({"mesh": block}), both), {})
    assert earlier is not None
    assert SECRET_TEXT not in repr(earlier)
    for answer in (MeshAnswer(), MeshAnswer(mode="keep")):
        meeting = arrange(answer, {}, bare, earlier=earlier)
        assert (meeting.mode, meeting.block(), meeting.secret) == ("secured", block, SECRET)
        assert sorted(meeting.environment()) == ["BEFORE", "VIIWORK_MESH_SECRET"]
        assert meeting.environment()["VIIWORK_MESH_SECRET"] == SECRET_TEXT


def test_a_script_that_runs_again_keeps_the_secret_of_its_mesh(bare: Registry, tmp_path: Path) -> None:
    earlier = earlier_meeting(set_up(tmp_path, "mesh: {network: seeds}"), {})
    again = arrange(MeshAnswer(mode="secured", advertise="192.0.2.9"), {}, bare, earlier=earlier)
    assert (again.secret, again.advertise) == (SECRET, "192.0.2.9")
    assert arrange(MeshAnswer(mode="secured", name="other"), {}, bare, earlier=earlier).secret != SECRET
    assert arrange(MeshAnswer(mode="alone"), {}, bare, earlier=earlier).environment() == {}


@pytest.mark.parametrize(
    ("mesh", "variables"),
    [
        ("mesh: {network: none}", ""),
        ("mesh: {network: seeds}", ""),
        ("mesh: {network: seeds}", "VIIWORK_MESH_SECRET=short\n"),
        ("mesh: {nett: seeds}", f"VIIWORK_MESH_SECRET={SECRET_TEXT}\n"),
        ("mesh: [", ""),
    ],
)
def test_what_cannot_be_kept_is_not_offered(bare: Registry, tmp_path: Path, mesh: str, variables: str) -> None:
    assert earlier_meeting(set_up(tmp_path, mesh, variables), {}) is None
    assert earlier_meeting(tmp_path / "none.yaml", {}) is None
    with pytest.raises(ConfigError, match="there is no mesh to keep"):
        arrange(MeshAnswer(mode="keep"), {}, bare)


def test_an_open_mesh_can_be_kept(bare: Registry, tmp_path: Path) -> None:
    earlier = earlier_meeting(set_up(tmp_path, "mesh: {network: seeds, open: true}", ""), {})
    meeting = arrange(MeshAnswer(), {}, bare, earlier=earlier)
    assert (meeting.mode, meeting.block(), meeting.environment()) == ("open", {"network": "seeds", "open": True}, {})


def test_a_discovery_that_cannot_look_here_is_not_relied_on() -> None:
    both = load_plugins({"VIIWORK_PLUGINS": "discovery_mdns,discovery_tailscale"})
    if len(finders(both)) < 2:
        pytest.skip("the discoveries are not installed")
    answer = MeshAnswer(mode="secured")
    assert arrange(answer, {}, both).network is None
    assert arrange(answer, {}, both, deaf={"tailscale"}).network == "lan"
    assert arrange(answer, {}, both, deaf={"tailscale", "mdns"}).network == "seeds"
    # What somebody chose stays.
    assert arrange(MeshAnswer(mode="secured", network="tailnet"), {}, both, deaf={"tailscale"}).network == "tailnet"
