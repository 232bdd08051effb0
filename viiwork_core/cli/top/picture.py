"""The picture: what is known of the mesh, from the node's stream. Bounded, however long somebody looks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from viiwork_core.cli.top.flights import Flights, Happened, Row

CLUSTER: Final = "cluster"
ALIASES: Final = "aliases"
ACTIVITY: Final = "activity"


class Picture:
    """Takes in the events of GET /v1/mesh/stream. What is not as it should be is passed over."""

    def __init__(self) -> None:
        self.cluster: dict[str, Any] = {}
        """As GET /v1/cluster; empty: nothing is known yet."""

        self.aliases: list[dict[str, Any]] = []
        self.happened = Happened()
        self._flights = Flights()

    def begin(self) -> None:
        """The stream begins, or begins again: it tells the past first."""
        self._flights.clear()

    def take(self, name: str, data: object, *, now: float, wall: float) -> None:
        """One event of the stream; `now` is monotonic, `wall` Unix time."""
        if not isinstance(data, dict):
            return
        try:
            self._take(name, data, now, wall)
        except (KeyError, TypeError, ValueError, AttributeError):
            return  # another release's, or nonsense

    def _take(self, name: str, data: dict[str, Any], now: float, wall: float) -> None:
        if name == CLUSTER:
            runs = {str(member["node_id"]) for member in data["members"]}
            self.cluster = data
            self._flights.keep(runs)
        elif name == ALIASES:
            self.aliases = [one for one in data["aliases"] if isinstance(one, dict)]
        elif name == ACTIVITY:
            self.happened.add(data)
            self._flights.add(data, now, wall)

    @property
    def members(self) -> list[dict[str, Any]]:
        return [one for one in self.cluster.get("members", ()) if isinstance(one, dict)]

    def flights(self, now: float) -> list[Row]:
        """The requests under way."""
        return self._flights.rows(now)

    def told(self, now: float) -> dict[str, Any]:
        """All of it, for scripts."""
        return {
            "cluster": self.cluster,
            "aliases": self.aliases,
            "requests": [_request(one) for one in self.flights(now)],
            "events": [dict(event) for event in self.happened.newest()],
        }


def _request(one: Row) -> Mapping[str, object]:
    found = {
        "request_id": one.rid,
        "model": one.model,
        "node": one.node,
        "peer": one.peer,
        "runs_at": one.runs,
        "first_token_s": one.first,
        "end": one.end,
        "seconds": round(one.seconds, 1),
    }
    return {name: value for name, value in found.items() if value is not None}
