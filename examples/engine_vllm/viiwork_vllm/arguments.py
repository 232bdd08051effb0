"""The operator's own arguments: which of them the core must decide alone."""

from __future__ import annotations

from collections.abc import Mapping

from viiwork_core import ConfigError, Spec

_PORT = "leave it out: viiwork draws a port of 127.0.0.1 for each launch and asks the server there"
_PLAIN = "leave it out: viiwork speaks plain HTTP to its own servers on 127.0.0.1"
_OPEN = "leave it out: the server listens on 127.0.0.1 only; who may ask is api.keys"
_MODEL = "write the model's folder into models[].path, and its name into models[].name"
_COUNTED = "leave it out: what runs is counted by the server's /metrics"
_ENGINES = "set gpus_per_backend: viiwork starts an engine for each backend, and spreads the requests"

REFUSED: Mapping[str, str] = {
    "--host": _PORT,
    "--port": _PORT,
    "--uds": _PORT,
    "--root-path": _PLAIN,
    "--ssl-keyfile": _PLAIN,
    "--ssl-certfile": _PLAIN,
    "--ssl-ca-certs": _PLAIN,
    "--ssl-cert-reqs": _PLAIN,
    "--api-key": _OPEN,
    "--model": _MODEL,
    "--served-model-name": _MODEL,
    "--max-model-len": "write the tokens of one request into models[].context",
    "--max-num-seqs": "write the number of requests at a time into models[].parallel",
    "--disable-log-stats": _COUNTED,
    "--headless": _ENGINES,
    "--api-server-count": _ENGINES,
    "--data-parallel-size": _ENGINES,
    "--config": "write what the file says into models[].args",
}
"""What to do in place of each flag."""

SHORT: Mapping[str, str] = {"-asc": _ENGINES, "-dp": _ENGINES}
REFUSED_VARIABLES: Mapping[str, str] = {"VLLM_API_KEY": _OPEN}


def check(spec: Spec) -> None:
    """Raises ConfigError for an argument or variable that would take a decision from the core."""
    for word in spec.args:
        if (remedy := _remedy(word)) is not None:
            raise ConfigError(f"models[{spec.model}].args: {_flag(word)} is viiwork's to decide", remedy=remedy)
    for name, remedy in REFUSED_VARIABLES.items():
        if name in spec.env:
            raise ConfigError(f"models[{spec.model}].env: {name} is viiwork's to decide", remedy=remedy)


def _remedy(word: str) -> str | None:
    flag = _flag(word)
    if not flag.startswith("--"):
        return SHORT.get(flag)
    # vLLM's parser takes the beginning of a flag for the flag.
    return next((remedy for name, remedy in REFUSED.items() if len(flag) > 2 and name.startswith(flag)), None)


def _flag(word: str) -> str:
    """The flag of --flag=value, spelled as vLLM reads it: _ is -."""
    flag = word.partition("=")[0]
    return flag.replace("_", "-") if flag.startswith("--") else flag
