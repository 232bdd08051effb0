"""Capacity reports: what is unknown is absent, and what is wrong is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viiwork_core.errors import BackendFailed
from viiwork_core.mesh.member import Member
from viiwork_core.mesh.report import CapacityReport, KvReport, ModelReport, SpentReport, decode_report, encode_report

MEMBER = Member(node="a", node_id="1", host="127.0.0.1", api_port=1)
MODEL: dict[str, Any] = {
    "name": "org/model:Q4",
    "engine": "llamacpp",
    "slots": 4,
    "busy": 1,
    "queued": 0,
    "backends": 2,
    "healthy_backends": 1,
}
REPORT: dict[str, Any] = {"node": "a", "node_id": "1", "ver": "0.1.0", "models": [MODEL]}


def decode(report: object) -> CapacityReport:
    return decode_report(json.dumps(report).encode(), MEMBER)


def test_a_report_comes_through_whole() -> None:
    model = ModelReport(
        name="m",
        engine="strata",
        slots=1,
        busy=1,
        queued=2,
        backends=1,
        healthy_backends=1,
        ctx=8192,
        kv=KvReport("g", "ab"),
    )
    spent = SpentReport(20_000, {"alice": 12})
    report = CapacityReport(node="a", node_id="1", ver="0.1.0+x", models=(model,), keys="ab", spent=spent)
    assert decode_report(encode_report(report), MEMBER) == report


@pytest.mark.parametrize(
    "spent",
    [
        {"day": -1, "tokens": {}},
        {"day": 1},
        {"day": 1, "tokens": {"a": -1}},
        {"day": 1, "tokens": {"a": 1 << 60}},
        {"day": 1, "tokens": {"<b>": 1}},
        {"day": 1, "tokens": {"a" * 65: 1}},
        {"day": 1, "tokens": {f"k{number}": 1 for number in range(1025)}},
    ],
)
def test_what_keys_have_used_must_make_sense(spent: dict[str, Any]) -> None:
    with pytest.raises(BackendFailed, match="malformed"):
        decode({**REPORT, "spent": spent})


def test_an_unknown_figure_is_absent_on_the_wire() -> None:
    assert json.loads(encode_report(decode(REPORT))) == REPORT


def test_a_field_of_a_newer_member_is_ignored() -> None:
    assert decode({**REPORT, "x": 1, "models": [{**MODEL, "y": []}]}) == decode(REPORT)


def test_a_node_without_models_has_a_report() -> None:
    assert decode({**REPORT, "models": []}).models == ()


@pytest.mark.parametrize(("field", "value"), [("node", "b"), ("node_id", "2")])
def test_a_report_of_another_node_is_refused(field: str, value: str) -> None:
    with pytest.raises(BackendFailed, match="another"):
        decode({**REPORT, field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("name", "a\n"),
        ("name", "a\x00"),
        ("name", "n" * 257),
        ("name", None),
        ("engine", "a b"),
        ("engine", "e\n"),
        ("slots", -1),
        ("slots", 10**9),
        ("slots", 10**400),
        ("slots", 1.5),
        ("slots", "4"),
        ("slots", True),
        ("slots", None),
        ("busy", 5),
        ("healthy_backends", 3),
        ("ctx", 0),
        ("ctx", -1),
        ("kv", {}),
        ("kv", {"group": "g"}),
        ("kv", {"group": "g", "fingerprint": "f" * 129}),
    ],
)
def test_a_bad_figure_is_refused(field: str, value: object) -> None:
    with pytest.raises(BackendFailed, match="malformed"):
        decode({**REPORT, "models": [{**MODEL, field: value}]})


@pytest.mark.parametrize("field", sorted(MODEL))
def test_a_needed_field_is_needed(field: str) -> None:
    with pytest.raises(BackendFailed, match=field):
        decode({**REPORT, "models": [{k: v for k, v in MODEL.items() if k != field}]})


def test_a_model_is_there_once() -> None:
    with pytest.raises(BackendFailed, match="twice"):
        decode({**REPORT, "models": [MODEL, MODEL]})


def test_too_many_models_are_refused() -> None:
    with pytest.raises(BackendFailed, match="malformed"):
        decode({**REPORT, "models": [{**MODEL, "name": str(n)} for n in range(1025)]})


def test_a_report_over_1_mib_is_not_read() -> None:
    with pytest.raises(BackendFailed, match="over 1048576 bytes"):
        decode_report(b" " * (1 << 20) + json.dumps(REPORT).encode(), MEMBER)


@pytest.mark.parametrize("raw", [b"", b"[]", b"null", b"{", b"\xff", b"[" * 100_000, b'{"node":"\xff"}'])
def test_what_is_no_report_is_refused(raw: bytes) -> None:
    with pytest.raises(BackendFailed, match="malformed"):
        decode_report(raw, MEMBER)


@given(st.binary())
def test_nothing_but_a_refusal_comes_of_nonsense(raw: bytes) -> None:
    with pytest.raises(BackendFailed):
        decode_report(raw, MEMBER)


def test_backends_that_are_dead_are_counted_and_a_peer_s_patience_is_bounded() -> None:
    (model,) = decode({**REPORT, "models": [{**MODEL, "dead_backends": 1, "first_byte_s": 90}]}).models
    assert (model.dead_backends, model.first_byte_s) == (1, 90.0)
    (silent,) = decode(REPORT).models
    assert (silent.dead_backends, silent.first_byte_s) == (0, None)
    for wrong in ({"dead_backends": 2}, {"first_byte_s": 0}, {"first_byte_s": 1e9}, {"first_byte_s": -1}):
        with pytest.raises(BackendFailed, match="malformed"):
            decode({**REPORT, "models": [{**MODEL, **wrong}]})
