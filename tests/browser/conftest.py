"""A live mesh of two nodes, and a browser without a screen that looks at it.

Screenshots are kept in .run/screenshots, or where VIIWORK_SCREENSHOTS says.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "http"))

from http_node import Node, started, until  # found by the lines above
from looking import BROWSERS, FLAGS, SHOTS, Screen
from scene import TOOL, Scene, configuration, free_port


@pytest.fixture(scope="module")
def scene(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("mesh")
    tools = folder / "tools"
    tools.mkdir()
    (tools / "nvidia-smi").write_text(TOOL)
    (tools / "nvidia-smi").chmod(0o755)
    ports = {host: free_port(host) for host in ("127.0.0.31", "127.0.0.32")}
    attic, cellar = configuration(ports)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
        with started("attic", folder / "attic", attic) as one, started("cellar", folder / "cellar", cellar) as other:
            made = Scene(one, other)
            until(made.settled, "both know each other and what they serve", within=60)
            made.name_things()
            yield made


@pytest.fixture
def attic(scene: Scene) -> Node:
    return scene.attic


# Not for the whole session: Playwright keeps an event loop running in this thread, and no other test could have one.
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Skips where no browser is installed, or nothing that drives one."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"no browser is installed: {', '.join(BROWSERS)}")
    with sync_api.sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield made
        made.close()


@pytest.fixture
def screen(browser: Any, scene: Scene) -> Iterator[Screen]:
    """A page at the first node. At the end nothing may have gone wrong in it, and nothing have gone elsewhere."""
    with Screen.open(browser, scene.base, SHOTS) as made:
        yield made
        made.check()
