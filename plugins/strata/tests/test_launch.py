"""What is started, and the options that say so."""

from __future__ import annotations

from pathlib import Path

import pluggy
import pytest
from pydantic import ValidationError

import viiwork_strata
from viiwork_core import ConfigError, Context, Spec, Vendor, hookspecs
from viiwork_strata.engine import StrataEngine
from viiwork_strata.options import StrataOptions

OPTIONS = StrataOptions(dir=Path("/opt/strata"), python="/opt/strata/.venv/bin/python")


def spec(path: Path | None, **changes: object) -> Spec:
    return Spec("tiny", 0, 1, path, 4096, 1, port=9001, **changes)  # type: ignore[arg-type]  # a spec's own fields


def test_hooks_offer_the_engine_and_its_cache() -> None:
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(viiwork_strata)
    assert [found.name for found in manager.hook.viiwork_register_engine()] == ["strata"]
    assert [found.engine for found in manager.hook.viiwork_register_cache_transfer()] == ["strata"]


def test_command_line_is_the_servers_with_the_operators_arguments_last(context: Context) -> None:
    """The launch line: "PYTHON -m serve.server --engine strata --config PATH --host 127.0.0.1 --port N --gpu LIST, then
    models[].args. Env: PYTHONPATH=dir, PYTHONSAFEPATH=1, PYTHONUNBUFFERED=1"."""
    wanted = spec(Path("/m/tiny.json"), gpus=(2, 3), vendor=Vendor.NVIDIA, args=("--lazy",), cache_dir=Path("/c"))
    launch = StrataEngine(OPTIONS, context).launch(wanted)
    assert launch.argv == (
        *("/opt/strata/.venv/bin/python", "-m", "serve.server", "--engine", "strata", "--config", "/m/tiny.json"),
        *("--host", "127.0.0.1", "--port", "9001", "--gpu", "2,3", "--slot-save-path", "/c", "--lazy"),
    )
    assert launch.env == {"PYTHONPATH": "/opt/strata", "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}


@pytest.mark.parametrize(("vendor", "gpu"), [(Vendor.AMD, "0,1"), (Vendor.NVIDIA, "2,3"), (Vendor.NONE, "2,3")])
def test_cards_are_renumbered_on_amd_only(context: Context, vendor: Vendor, gpu: str) -> None:
    """AMD -> 0..n-1 ...; everything else -> the real card indexes"."""
    argv = StrataEngine(OPTIONS, context).launch(spec(Path("/m.json"), gpus=(2, 3), vendor=vendor)).argv
    assert argv[argv.index("--gpu") + 1] == gpu


def test_without_cards_and_cache_folder_neither_is_named(context: Context) -> None:
    argv = StrataEngine(OPTIONS, context).launch(spec(Path("/m.json"))).argv
    assert not {"--gpu", "--slot-save-path"} & set(argv)


def test_dir_must_be_absolute() -> None:
    with pytest.raises(ValidationError, match="absolute path to the Strata checkout"):
        StrataOptions(dir=Path("strata"))


def test_a_missing_path_is_refused_before_a_launch(context: Context) -> None:
    engine = StrataEngine(OPTIONS, context)
    with pytest.raises(ConfigError, match="model tiny: path: is missing"):
        engine.launch(spec(None))


@pytest.mark.parametrize(
    ("written", "seconds"), [("30s", 30.0), ("1m30s", 90.0), ("250ms", 0.25), ("10m", 600.0), (0, 0.0), ("0", 0.0)]
)
def test_warmup_is_a_duration(context: Context, written: object, seconds: float) -> None:
    options = StrataOptions.model_validate({"dir": "/opt/strata", "warmup": written})
    assert StrataEngine(options, context).warm_up() == seconds
    assert StrataOptions.model_validate(options.model_dump(mode="json")) == options


def test_warmup_is_30_seconds_unless_told_otherwise(context: Context) -> None:
    assert StrataEngine(OPTIONS, context).warm_up() == 30.0


@pytest.mark.parametrize("written", ["11m", "-1s", "30", 30, True, None, "", "1s x", "1e3s", "s", []])
def test_no_other_warmup_is_taken(written: object) -> None:
    with pytest.raises(ValidationError, match=r"warmup\n.*must be (a duration|at most 10m)"):
        StrataOptions.model_validate({"dir": "/opt/strata", "warmup": written})


def test_the_server_has_half_an_hour_to_load_and_a_minute_to_end() -> None:
    """Strata: "engine gets QUIT on stdin (20 s), then terminate (20 s), then kill (20 s)"; "startup_timeout default
    30 m"."""
    assert (StrataEngine.startup_timeout, StrataEngine.stop_timeout) == (1800.0, 60.0)
