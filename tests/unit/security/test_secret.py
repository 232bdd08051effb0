"""The secret is read strictly, kept as derived keys, and never shown."""

from __future__ import annotations

import base64
import hmac
import re
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viiwork_core.errors import ConfigError
from viiwork_core.security.secret import MeshSecret, SessionKeys, load_secret

SECRET = bytes(range(32))
TEXT = base64.b64encode(SECRET).decode()


def test_a_secret_is_32_bytes_of_standard_base64() -> None:
    assert load_secret({"V": TEXT}, variable="V", open_mesh=False) == MeshSecret.from_bytes(SECRET)
    assert load_secret({"V": f" {TEXT}\n"}, variable="V", open_mesh=False) == MeshSecret.from_bytes(SECRET)


def test_an_open_mesh_has_none() -> None:
    assert load_secret({}, variable="V", open_mesh=True) is None
    assert load_secret({"V": ""}, variable="V", open_mesh=True) is None


@pytest.mark.parametrize(
    ("environ", "open_mesh"),
    [
        pytest.param({}, False, id="neither"),
        pytest.param({"OTHER": TEXT}, False, id="another variable"),
        pytest.param({"V": TEXT}, True, id="both"),
        pytest.param({"V": "not base64!"}, False, id="not base64"),
        pytest.param({"V": "kläglich"}, False, id="not ASCII"),
        pytest.param({"V": base64.b64encode(SECRET[:31]).decode()}, False, id="31 bytes"),
        pytest.param({"V": base64.b64encode(SECRET + b"x").decode()}, False, id="33 bytes"),
        pytest.param({"V": SECRET.hex()}, False, id="hex"),
        pytest.param({"V": base64.urlsafe_b64encode(b"\xff" * 32).decode()}, False, id="the other base64"),
    ],
)
def test_what_is_refused_names_the_variable_and_the_way_out(environ: dict[str, str], open_mesh: bool) -> None:
    with pytest.raises(ConfigError, match="V") as caught:
        load_secret(environ, variable="V", open_mesh=open_mesh)
    assert "V" in caught.value.remedy
    shown = caught.value.message + caught.value.remedy
    assert not any(value and value in shown for value in environ.values())


def test_the_line_of_the_remedy_makes_a_secret() -> None:
    with pytest.raises(ConfigError) as caught:
        load_secret({}, variable="V", open_mesh=False)
    found = re.search(r"export V=.*?\)\"", caught.value.remedy)
    assert found
    made = subprocess.run(["sh", "-c", f'{found.group()}; printf %s "$V"'], capture_output=True, text=True, check=True)
    assert load_secret({"V": made.stdout}, variable="V", open_mesh=False) is not None


def test_every_purpose_has_a_key_of_its_own() -> None:
    secret = MeshSecret.from_bytes(SECRET)
    keys = {secret.gossip, secret.signature, secret.replica, secret.session, SECRET}
    assert len(keys) == 5
    assert {len(key) for key in keys} == {32}


def test_the_keys_are_those_of_rfc_5869() -> None:
    extracted = hmac.digest(b"\0" * 32, SECRET, "sha256")
    secret = MeshSecret.from_bytes(SECRET)
    assert secret.gossip == hmac.digest(extracted, b"viiwork gossip\x01", "sha256")
    assert secret.signature == hmac.digest(extracted, b"viiwork signature\x01", "sha256")


def test_showing_a_secret_shows_nothing() -> None:
    secret = MeshSecret.from_bytes(SECRET)
    assert repr(secret) == str(secret) == f"{secret}" == "MeshSecret(...)"


def test_a_secret_does_not_change() -> None:
    with pytest.raises(AttributeError):
        MeshSecret.from_bytes(SECRET).gossip = b""  # type: ignore[misc]  # that it fails is the point


def test_equal_sessions_have_equal_keys_on_all_nodes_of_a_mesh_and_no_other() -> None:
    here, there = (SessionKeys(MeshSecret.from_bytes(SECRET), mesh=name) for name in ("a", "b"))
    assert here.session_key("s") == there.session_key("s")
    assert here.session_key("s") != here.session_key("t")
    assert here.session_key("s") != SessionKeys(MeshSecret.from_bytes(b"x" * 32), mesh="a").session_key("s")


def test_in_an_open_mesh_the_name_of_the_mesh_is_the_key() -> None:
    assert SessionKeys(None, mesh="a").session_key("s") == SessionKeys(None, mesh="a").session_key("s")
    assert SessionKeys(None, mesh="a").session_key("s") != SessionKeys(None, mesh="b").session_key("s")


@given(st.text(st.characters(exclude_categories=[])))
def test_any_text_names_a_session(value: str) -> None:
    assert re.fullmatch(r"[0-9a-f]{32}", SessionKeys(None, mesh="m").session_key(value))
