"""A request by an alias: the model's name stands in the body from then on, and nothing else has changed."""

from __future__ import annotations

import asyncio
import json

import pytest

from viiwork_core.errors import ModelNotServed
from viiwork_core.proxy.body import Body
from viiwork_core.proxy.request import LARGE, resolved


def _resolve(name: str) -> str | None:
    if name == "nothing":
        raise ModelNotServed("no")
    return {"coder": "big"}.get(name)


def resolve(body: Body) -> str | None:
    return asyncio.run(resolved(body, _resolve))


def test_an_alias_is_written_over() -> None:
    body = Body(b'{"user":"\xc3\xbf", "model" :"coder","huge":1e400}')
    assert resolve(body) == "coder"
    assert body.get("model") == "big"
    assert body.raw == body.edited() == body.copy().edited() == b'{"user":"\xc3\xbf","model":"big","huge":1e400}'


@pytest.mark.parametrize(
    "raw", [b'{ "model":"big"}', b"{}", b'{"model":7 }', b'{"model":null}', b'{"model":["coder"]}']
)
def test_everything_else_stays_as_it_came(raw: bytes) -> None:
    body = Body(raw)
    assert resolve(body) is None
    assert body.raw is body.edited() is raw


def test_an_alias_for_nothing_is_an_error() -> None:
    with pytest.raises(ModelNotServed):
        resolve(Body(b'{"model":"nothing"}'))


def test_a_large_body_too() -> None:
    body = Body(json.dumps({"model": "coder", "prompt": "x" * (LARGE + 1)}).encode())
    assert resolve(body) == "coder"
    assert json.loads(body.raw) == {"model": "big", "prompt": "x" * (LARGE + 1)}
