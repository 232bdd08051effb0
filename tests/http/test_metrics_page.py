"""docs/metrics.md and the Grafana dashboard, held against what two live nodes with traffic expose."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from http_node import CHAT, ask, chat, model, started, until
from key_holders import said
from meshes import free_port, mesh_at
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

DOCS = Path(__file__).parents[2] / "docs"
DASHBOARD = json.loads((DOCS / "grafana" / "viiwork.json").read_text())
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| (.*?) \| (.*?) \| (.*?) \| ([0-9]+\.[0-9]+) \|$", re.MULTILINE)
OF_SCRAPES = {"job", "instance"}
"""Labels that Prometheus adds."""

OF_HISTOGRAMS = {"le", "quantile"}


@dataclass(frozen=True)
class Series:
    """One that the page lists."""

    kind: str
    labels: frozenset[str]
    unit: str


@pytest.fixture(scope="module")
def listed() -> dict[str, Series]:
    rows = ROW.findall((DOCS / "metrics.md").read_text())
    return {
        name: Series(kind, frozenset() if labels == "none" else frozenset(labels.split(", ")), unit)
        for name, kind, labels, unit, _, _ in rows
    }


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Metric]]:
    """What a node exposes that answered, forwarded and refused requests, with a key, a session and a peer."""
    folder = tmp_path_factory.mktemp("metrics")
    shared = model("shared", "scripted-shared", kv_share={"group": "g", "min_tokens": 1})
    first, second = ((host, free_port(host)) for host in ("127.0.0.31", "127.0.0.32"))
    one = {"mesh": mesh_at(*first, [":".join(map(str, second))]), "models": [shared]}
    other = {"mesh": mesh_at(*second, [":".join(map(str, first))]), "models": [shared, model("far")]}
    with started("front", folder / "front", one) as front, started("back", folder / "back", other):
        until(lambda: {entry["id"] for entry in front.get("/v1/models")["data"]} >= {"far", "shared"}, "they meet")
        front.engine("shared").open("save")
        token = said(front, "new", "alice").split()[0]

        def asked(name: str, path: str = CHAT) -> int:
            headers = [("Authorization", f"Bearer {token}"), ("X-Session-Id", "s")]
            return asyncio.run(ask(front, chat(name), path=path, headers=headers)).status

        # Both have the session's model: where it begins would depend on their names.
        assert [asked("shared", f"{CHAT}?host=front") for _ in range(2)] == [200, 200]
        assert [asked("far"), asked("nobody-has-it")] == [200, 404]

        def scraped() -> dict[str, Metric]:
            headers = [("Authorization", f"Bearer {token}")]
            text = asyncio.run(ask(front, b"", path="/metrics", method="GET", headers=headers)).body.decode()
            return {_name(one): one for one in text_string_to_metric_families(text)}

        yield until(lambda: (found := scraped())["viiwork_session_turns_total"].samples and found, "all is counted")


def _name(family: Metric) -> str:
    return family.name + ("_total" if family.type == "counter" else "")


def test_the_page_lists_what_a_node_exposes_and_nothing_else(
    listed: dict[str, Series], exposed: dict[str, Metric]
) -> None:
    assert {name: one.kind for name, one in listed.items()} == {name: one.type for name, one in exposed.items()}


def test_the_labels_are_those_of_the_page(listed: dict[str, Series], exposed: dict[str, Metric]) -> None:
    for name, family in exposed.items():
        for sample in family.samples:
            assert sample.labels.keys() - OF_HISTOGRAMS == listed[name].labels, sample


def test_the_traffic_showed_in_what_it_should(exposed: dict[str, Metric]) -> None:
    with_samples = {name for name, family in exposed.items() if family.samples}
    # There is no card here, and nothing was imported.
    absent = {name for name in exposed.keys() - with_samples if not name.startswith("viiwork_gpu_")}
    assert absent <= {"viiwork_imports_total"} | {name for name in exposed if name.startswith("viiwork_replica")}


def test_a_unit_in_a_name_is_the_unit_of_the_page(listed: dict[str, Series]) -> None:
    units = ("seconds", "bytes", "watts", "ratio", "tokens")
    for name, one in listed.items():
        assert one.unit == next((unit for unit in units if f"_{unit}" in name), one.unit), name
        assert one.kind != "counter" or name.endswith("_total"), name


# The dashboard


def _panels() -> list[dict[str, Any]]:
    return [one for one in DASHBOARD["panels"] if one["type"] != "row"]


def _queries() -> list[str]:
    return [target["expr"] for panel in _panels() for target in panel["targets"]]


def _plain(query: str) -> str:
    """A query as Prometheus gets it, with Grafana's variables filled in."""
    filled = query.replace("$__rate_interval", "5m").replace("$job", "viiwork").replace("$model", ".*")
    assert "$" not in filled, query
    return filled


def _selected(tree: Any) -> Iterator[promql_parser.VectorSelector]:
    if isinstance(tree, promql_parser.VectorSelector):
        yield tree
    for name in ("expr", "lhs", "rhs", "vector_selector", "param"):
        if (inner := getattr(tree, name, None)) is not None:
            yield from _selected(inner)
    for inner in getattr(tree, "args", ()) or ():
        yield from _selected(inner)


def _grouped(tree: Any) -> set[str]:
    """Labels that any part of a query groups by."""
    modifier = getattr(tree, "modifier", None)
    found = set(getattr(modifier, "labels", ()) or ()) if isinstance(tree, promql_parser.AggregateExpr) else set()
    inner = [getattr(tree, name, None) for name in ("expr", "lhs", "rhs")]
    for one in (*inner, *(getattr(tree, "args", ()) or ())):
        found |= _grouped(one) if one is not None else set()
    return found


@pytest.mark.parametrize("query", _queries())
def test_every_query_is_one_about_series_that_a_node_exposes(
    query: str, listed: dict[str, Series], exposed: dict[str, Metric]
) -> None:
    tree = promql_parser.parse(_plain(query))
    selectors = list(_selected(tree))
    assert selectors, "it selects nothing"
    known = set[str]()
    for selector in selectors:
        name = re.sub(r"(?<=_seconds)_(bucket|sum|count)$", "", selector.name)
        assert name in exposed, selector.name
        assert (selector.name != name) == (exposed[name].type == "histogram"), selector.name
        labels = listed[name].labels | OF_SCRAPES | ({"le"} if exposed[name].type == "histogram" else set())
        assert {one.name for one in selector.matchers.matchers} <= labels, query
        known |= labels
    assert _grouped(tree) <= known, query


def test_a_counter_is_only_shown_as_a_rate() -> None:
    for query in _queries():
        for name in re.findall(r"(?<!rate\()\b(viiwork_\w+_(?:total|bucket))\b", query):
            raise AssertionError(f"{name} is not in a rate: {query}")


def test_legends_name_labels_that_their_query_keeps() -> None:
    for panel in _panels():
        for target in panel["targets"]:
            tree = promql_parser.parse(_plain(target["expr"]))
            kept = _grouped(tree) or {"gpu", *OF_SCRAPES}
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= kept, target


def test_grafana_can_load_it(listed: dict[str, Series]) -> None:
    """As far as that can be said without Grafana: what its importer asks for, ids that differ, and a grid that fits."""
    assert (DASHBOARD["id"], DASHBOARD["uid"], DASHBOARD["title"]) == (None, "viiwork", "viiwork")
    assert DASHBOARD["schemaVersion"] >= 36
    panels = DASHBOARD["panels"]
    assert len({one["id"] for one in panels}) == len(panels)
    assert {one["type"] for one in panels} <= {"row", "timeseries", "stat", "table"}
    taken = set[tuple[int, int]]()
    for one in panels:
        at = one["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24, one["title"]
        assert not cells & taken, one["title"]
        taken |= cells
    for one in _panels():
        assert one["title"]
        assert one["description"], one["title"]
        assert one["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        refs = [target["refId"] for target in one["targets"]]
        assert len(set(refs)) == len(refs) > 0


def test_its_variables_are_those_that_its_queries_use(listed: dict[str, Series]) -> None:
    variables = {one["name"]: one for one in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD["panels"]))) - {"__rate_interval", "__all"}
    assert used == variables.keys()
    for name in ("job", "model"):
        series, label = re.fullmatch(r"label_values\((\w+).*?, (\w+)\)", variables[name]["definition"]).groups()  # type: ignore[union-attr]  # None fails the test
        assert label in listed[series].labels | OF_SCRAPES
