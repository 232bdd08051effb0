"""A member's status: what is read of it, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from viiwork_core.errors import BackendFailed
from viiwork_core.mesh.member import Member
from viiwork_core.mesh.status import LONGEST, MOST_LINKS, read_status

MEMBER = Member(node="peer", node_id="run-1", host="127.0.0.2", api_port=1)
WHOLE = {"node": "peer", "node_id": "run-1", "ver": "1", "uptime_s": 5}
BACKEND = {"id": "m/0", "status": "starting", "slots": 2, "busy": 0}
MODEL = {"name": "m", "engine": "fake", "slots": 0, "busy": 0, "queued": 0}


def read(**fields: Any) -> Any:
    return msgspec.to_builtins(read_status(json.dumps({**WHOLE, **fields}).encode(), MEMBER))


def test_unknown_fields_are_left_out_and_unknown_figures_absent() -> None:
    gpu = {"index": 0, "util": 12.5}
    assert read(gpus=[gpu], members=[{"node": "x"}], secret="s") == {**WHOLE, "gpus": [gpu]}


def test_words_are_cut_and_put_on_one_line() -> None:
    reason = "failed\n\x1b[31m" + "<b>" * 1000
    found = read(models=[{**MODEL, "backends": [{**BACKEND, "reason": reason}]}])["models"][0]["backends"][0]
    assert found["reason"].startswith("failed  [31m<b>")
    assert len(found["reason"]) == LONGEST
    assert found["reason"].isprintable()


@pytest.mark.parametrize(
    "fields",
    [
        {"uptime_s": -1},
        {"uptime_s": "5"},
        {"gpus": [{"index": 0}] * 65},
        {"gpus": [{"index": 0, "util": -1}]},
        {"models": [{**MODEL, "slots": -1}]},
        {"models": [MODEL] * 1025},
        {"models": [{**MODEL, "backends": [{**BACKEND, "progress": 2}]}]},
        {"models": [{**MODEL, "backends": [BACKEND] * 257}]},
        {"kv_share": {"links": [{"node": "x"}] * (MOST_LINKS + 1)}},
        {"kv_share": {"links": [{"node": "x", "sent": -1}]}},
    ],
)
def test_figures_that_make_no_sense_refuse_it(fields: dict[str, Any]) -> None:
    with pytest.raises(BackendFailed, match="peer: its status is malformed"):
        read(**fields)


def test_a_member_speaks_for_itself_only() -> None:
    for other in ({"node": "someone"}, {"node_id": "run-2"}):
        with pytest.raises(BackendFailed, match="another node, or another run of it"):
            read(**other)


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b"\xff", b'{"a":' * 3000])
def test_what_is_no_status_is_refused(raw: bytes) -> None:
    with pytest.raises(BackendFailed, match="malformed"):
        read_status(raw, MEMBER)
