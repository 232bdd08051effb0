"""A node that is only a fleet, for the test that kills it: its children each start one in their group and one outside.

Writes the backend's pid to the file named by its argument when it is healthy.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from plain import PlainEngine, plan

from viiwork_core.clock import SystemClock
from viiwork_core.engines.fleet import Fleet, HealthSettings
from viiwork_core.engines.states import BackendState, BackendView


def publish(view: BackendView) -> None:
    if view.state is BackendState.HEALTHY and view.load is None:
        draft = Path(sys.argv[2] + ".draft")
        draft.write_text(str(view.pid))
        draft.rename(sys.argv[2])


engine = PlainEngine("--grandchild", "group", "--grandchild", "session", *sys.argv[3:])
fleet = Fleet([plan(engine)], health=HealthSettings(), node_id=sys.argv[1], clock=SystemClock(), publish=publish)
asyncio.run(fleet.run())
