"""What is started, and which JSON is refused."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
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


def prepare(context: Context, path: Path | None) -> None:
    anyio.run(StrataEngine(OPTIONS, context).prepare, spec(path))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "path: .* cannot be read"),
        ("{", "path: .* is not JSON"),
        ("[]", "path: .* is not a JSON object"),
        ("{}", "model_name or aliases qwen3.8-flash-next, not tiny"),
        ('{"model_name": null}', "not tiny"),
        ('{"model_name": "other", "aliases": ["tinier"]}', "model_name or aliases other, tinier, not tiny"),
    ],
)
def test_a_json_that_cannot_serve_the_model_is_refused(
    context: Context, tmp_path: Path, text: str | None, words: str
) -> None:
    path = tmp_path / "strata.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=f"model tiny: .*{words}") as refused:
        prepare(context, path)
    assert refused.value.remedy


def test_a_missing_path_is_refused_before_a_launch(context: Context) -> None:
    engine = StrataEngine(OPTIONS, context)
    with pytest.raises(ConfigError, match="model tiny: path: is missing"):
        engine.launch(spec(None))


@pytest.mark.parametrize(
    "names", [{"model_name": "tiny"}, {"aliases": ["x", "tiny"]}, {"model_name": "y", "aliases": "x, tiny"}]
)
def test_a_name_or_an_alias_is_enough(context: Context, tmp_path: Path, names: dict[str, object]) -> None:
    """Strata: "aliases (list or one comma string)", "Config JSON is read as utf-8-sig (BOM ok)"."""
    path = tmp_path / "strata.json"
    path.write_text(json.dumps(names), "utf-8-sig")
    prepare(context, path)
    assert path.exists()
