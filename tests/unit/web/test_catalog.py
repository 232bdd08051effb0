"""The lists of models: different shapes of the same records."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from viiwork_core.config.catalog import PROVIDER_ID
from viiwork_core.web.catalog import ModelRecord, litellm, openai, opencode, unique

BASE = "http://attic:8086"

names = st.text(min_size=1, max_size=20)
owners = st.sampled_from(("local", "peer", "pipeline", "alias"))
records = st.builds(ModelRecord, names, owners, st.none() | st.integers(1, 1 << 24))


@settings(deadline=None)
@given(st.lists(records, max_size=8))
def test_all_lists_say_the_same(known: list[ModelRecord]) -> None:
    listed = unique(known)
    plain, info = openai(listed, 7)["data"], litellm(listed)["data"]
    catalog = opencode(listed, BASE)[PROVIDER_ID]["models"]
    assert [one["id"] for one in plain] == [one["model_name"] for one in info] == list(catalog)
    assert [one["litellm_params"]["model"] for one in info] == [one["id"] for one in plain]
    for one, other, third in zip(plain, info, catalog.values(), strict=True):
        context = one.get("context_length")
        assert one.get("max_model_len") == context
        assert other["model_info"].get("max_input_tokens") == context
        assert third["limit"]["context"] == (8192 if context is None else context)
        assert third["id"] == third["name"] == one["id"]


@settings(deadline=None)
@given(st.lists(records, max_size=8))
def test_each_name_is_listed_once_and_its_nearest_owner_wins(known: list[ModelRecord]) -> None:
    listed = unique(known)
    assert [one.id for one in listed] == sorted({one.id for one in known})
    order = ["local", "peer", "pipeline", "alias"]
    for one in listed:
        assert order.index(one.owned_by) == min(order.index(other.owned_by) for other in known if other.id == one.id)


def test_what_is_not_known_is_absent() -> None:
    listed = [ModelRecord("qwen", "peer", None)]
    entry = {"id": "qwen", "object": "model", "created": 7, "owned_by": "peer"}
    assert openai(listed, 7) == {"object": "list", "data": [entry]}
    assert litellm(listed)["data"][0]["model_info"] == {"mode": "chat", "supports_function_calling": True}


@pytest.mark.parametrize(
    ("context", "output"),
    [(None, 2048), (8192, 2048), (32768, 8192), (131072, 32768), (1 << 20, 32768), (5000, 1024), (2048, 512), (3, 0)],
)
def test_the_output_is_a_quarter_in_whole_steps(context: int | None, output: int) -> None:
    entry = opencode([ModelRecord("qwen", "local", context)], BASE)[PROVIDER_ID]["models"]["qwen"]
    assert entry["limit"]["output"] == output


def test_opencode_is_told_where_it_is() -> None:
    provider = opencode([], BASE)[PROVIDER_ID]
    assert provider == {
        "id": "viiwork",
        "name": " viiwork",
        "env": [],
        "npm": "@ai-sdk/openai-compatible",
        "api": "http://attic:8086/v1",
        "models": {},
    }
