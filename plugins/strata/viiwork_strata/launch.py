"""The command line of a Strata server."""

from __future__ import annotations

from viiwork_core import Launch, Spec, Vendor
from viiwork_strata.config_file import config_path
from viiwork_strata.options import StrataOptions


def launch(options: StrataOptions, spec: Spec) -> Launch:
    """Argv and environment of one backend. Pure. Raises ConfigError when the model has no `path`."""
    argv = [options.python, "-m", "serve.server", "--engine", "strata", "--config", str(config_path(spec))]
    argv += ["--host", spec.host, "--port", str(spec.port), *_gpu(spec), *_slot_save_path(spec), *spec.args]
    # PYTHONSAFEPATH keeps the node's working directory out of the module search.
    env = {"PYTHONPATH": str(options.dir), "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
    return Launch(tuple(argv), env)


def _gpu(spec: Spec) -> list[str]:
    """On AMD the core's pin renumbers the cards from 0; elsewhere Strata overwrites the pin with these numbers."""
    if not spec.gpus:
        return []
    cards = range(len(spec.gpus)) if spec.vendor is Vendor.AMD else spec.gpus
    return ["--gpu", ",".join(str(card) for card in cards)]


def _slot_save_path(spec: Spec) -> list[str]:
    return [] if spec.cache_dir is None else ["--slot-save-path", str(spec.cache_dir)]
