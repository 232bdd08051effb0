"""The operator's own arguments: which of them the core must decide alone."""

from __future__ import annotations

from collections.abc import Mapping

from viiwork_core import ConfigError, Spec

_PORT = "leave it out: viiwork draws a port of 127.0.0.1 for each launch and asks the server there"
_MODEL = "write the model's file into models[].path"
_OPEN = "leave it out: the server listens on 127.0.0.1 only; who may ask is api.keys"
_PLAIN = "leave it out: viiwork speaks plain HTTP to its own servers on 127.0.0.1"
_ROUTER = "write one entry in models[] for each model"

REFUSED: Mapping[str, str] = {
    "--port": _PORT,
    "--host": _PORT,
    "--reuse-port": _PORT,
    "-np": "write the number of slots into models[].parallel",
    "--parallel": "write the number of slots into models[].parallel",
    "-a": "the mesh-wide name is models[].name; for a second one set an alias (viiwork alias)",
    "--alias": "the mesh-wide name is models[].name; for a second one set an alias (viiwork alias)",
    "--no-slots": "leave it out: free slots are counted by the server's /slots",
    "--slot-save-path": "turn models[].kv_share on: it gives each backend a folder of its own",
    "-m": _MODEL,
    "--model": _MODEL,
    "-mu": _MODEL,
    "--model-url": _MODEL,
    "-hf": _MODEL,
    "-hfr": _MODEL,
    "--hf-repo": _MODEL,
    "-hff": _MODEL,
    "--hf-file": _MODEL,
    "-dr": _MODEL,
    "--docker-repo": _MODEL,
    "--api-key": _OPEN,
    "--api-key-file": _OPEN,
    "--api-prefix": _PLAIN,
    "--ssl-key-file": _PLAIN,
    "--ssl-cert-file": _PLAIN,
    "--models-dir": _ROUTER,
    "--models-preset": _ROUTER,
}
"""What to do in place of each flag. -c may be written: the context that is served is asked of the server."""

REFUSED_VARIABLES: Mapping[str, str] = {
    "LLAMA_API_KEY": _OPEN,
    "LLAMA_ARG_API_KEY_FILE": _OPEN,
    "LLAMA_ARG_API_PREFIX": _PLAIN,
    "LLAMA_ARG_SSL_KEY_FILE": _PLAIN,
    "LLAMA_ARG_SSL_CERT_FILE": _PLAIN,
    "LLAMA_ARG_REUSE_PORT": _PORT,
    "LLAMA_ARG_MODELS_DIR": _ROUTER,
    "LLAMA_ARG_MODELS_PRESET": _ROUTER,
    "LLAMA_ARG_HF_REPO": _MODEL,
    "LLAMA_ARG_MODEL_URL": _MODEL,
    "LLAMA_ARG_DOCKER_REPO": _MODEL,
}
"""Those whose flag is not on the command line anyway; where it is, it wins over its variable."""


def check(spec: Spec) -> None:
    """Raises ConfigError for an argument or variable that would take a decision from the core."""
    for key, found, refused in (
        ("args", (_flag(word) for word in spec.args), REFUSED),
        ("env", spec.env, REFUSED_VARIABLES),
    ):
        first = next((name for name in found if name in refused), None)
        if first is not None:
            raise ConfigError(f"models[{spec.model}].{key}: {first} is viiwork's to decide", remedy=refused[first])


def given(spec: Spec, *flags: str, variable: str = "") -> bool:
    """Whether the operator has written one of the spellings, or its variable."""
    return not set(flags).isdisjoint(_flag(word) for word in spec.args) or (bool(variable) and variable in spec.env)


def swa_full(spec: Spec) -> bool:
    """Whether layers with a sliding window keep the cache of all tokens."""
    return given(spec, "--swa-full", variable="LLAMA_ARG_SWA_FULL")


def _flag(word: str) -> str:
    """As llama-server reads it: in long flags _ is -."""
    return word.replace("_", "-") if word.startswith("--") else word
