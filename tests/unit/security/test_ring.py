"""Two secrets at once, while a mesh changes from one to the other."""

from __future__ import annotations

import base64

import pytest

from viiwork_core.errors import ConfigError
from viiwork_core.security.ring import SecretRing, load_ring
from viiwork_core.security.secret import MeshSecret, SessionKeys

NEW, OLD = (MeshSecret.from_bytes(letter * 32) for letter in (b"n", b"o"))


def text(letter: bytes) -> str:
    return base64.b64encode(letter * 32).decode()


def loaded(*, open_mesh: bool = False, previous: str = "P", **environ: str) -> SecretRing | None:
    return load_ring(environ, variable="V", previous=previous, open_mesh=open_mesh)


def test_one_secret_is_a_ring_of_one() -> None:
    ring = loaded(V=text(b"n"))
    assert ring is not None
    assert (ring.all, ring.used) == ((NEW,), NEW)


def test_with_both_the_previous_one_is_used_until_told_otherwise() -> None:
    ring = loaded(V=text(b"n"), P=text(b"o"))
    assert ring is not None
    assert (ring.all, ring.used) == ((NEW, OLD), OLD)
    assert (ring.signature, ring.replica, ring.session) == (OLD.signature, OLD.replica, OLD.session)
    assert ring.use(NEW.id) is ring.used
    assert (ring.signature, ring.replica, ring.session) == (NEW.signature, NEW.replica, NEW.session)


def test_the_same_twice_is_no_change() -> None:
    ring = loaded(V=text(b"n"), P=text(b"n"))
    assert ring is not None
    assert ring.previous is None


def test_sessions_follow_the_secret_in_use() -> None:
    ring = SecretRing(NEW, OLD)
    keys = SessionKeys(ring, mesh="m")
    assert keys.session_key("s") == SessionKeys(OLD, mesh="m").session_key("s")
    ring.use(NEW.id)
    assert keys.session_key("s") == SessionKeys(NEW, mesh="m").session_key("s")


def test_a_stranger_s_secret_is_not_used() -> None:
    with pytest.raises(ValueError, match="no secret"):
        SecretRing(NEW).use(OLD.id)


def test_an_open_mesh_has_no_ring() -> None:
    assert loaded(open_mesh=True) is None
    assert loaded(open_mesh=True, P=" ") is None


@pytest.mark.parametrize(
    ("environ", "open_mesh", "named"),
    [
        pytest.param({}, False, "V", id="neither"),
        pytest.param({"P": text(b"o")}, False, "V", id="only the previous one"),
        pytest.param({"V": text(b"n")}, True, "V", id="both open and secured"),
        pytest.param({"P": text(b"o")}, True, "P", id="open with a previous one"),
        pytest.param({"V": text(b"n"), "P": "short"}, False, "P", id="a malformed previous one"),
    ],
)
def test_what_is_refused_names_the_variable(environ: dict[str, str], open_mesh: bool, named: str) -> None:
    with pytest.raises(ConfigError, match=rf"\b{named}\b") as caught:
        loaded(open_mesh=open_mesh, **environ)
    assert named in caught.value.remedy
    assert not any(value in str(caught.value) for value in environ.values())


def test_both_from_one_variable_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"mesh\.secret_prev_env"):
        loaded(V=text(b"n"), previous="V")


def test_showing_a_ring_shows_nothing() -> None:
    assert repr(SecretRing(NEW, OLD)) == "SecretRing(...)"
    assert NEW.id != OLD.id
    assert len(NEW.id) == 8
