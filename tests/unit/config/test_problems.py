"""Where pydantic's errors stand in the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from viiwork_core.config.problems import SourceMap, from_validation


class Small(BaseModel):
    model_config = ConfigDict(extra="forbid")
    depth: int


class Large(BaseModel):
    model_config = ConfigDict(extra="forbid")
    width: int


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")
    size: PositiveInt | Annotated[str, Field(pattern="^[0-9]+M$")] | None = None
    shape: Small | Large | None = None
    shapes: tuple[Small, ...] = ()
    named: Mapping[str, Small] = Field(default_factory=dict)
    renamed: int = Field(default=0, alias="other-name")


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ({"size": "lots"}, {"b.size: must be a valid integer", "b.size: must match pattern"}),
        ({"shape": {"depth": "x"}}, {"b.shape.depth: must be", "b.shape.depth: unknown key", "b.shape.width: missing"}),
        ({"shapes": [{"depth": 1}, {"dept": 1}]}, {"b.shapes[1].depth: missing", "b.shapes[1].dept: unknown key; did"}),
        ({"named": {"Small": {"depth": "x"}}}, {"b.named.Small.depth: must be"}),
        ({"other-name": "x"}, {"b.other-name: must be"}),
        ({"other-nam": 1}, {"b.other-nam: unknown key; did you mean other-name?"}),
    ],
)
def test_a_place_is_the_one_in_the_file(block: dict[str, Any], expected: set[str]) -> None:
    with pytest.raises(ValidationError) as caught:
        Options.model_validate(block)
    told = [problem.render(SourceMap()) for problem in from_validation(caught.value, ("b",), Options)]
    assert len(told) == len(expected)
    assert all(any(one.startswith(start) for one in told) for start in expected), told
