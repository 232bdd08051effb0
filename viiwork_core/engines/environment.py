"""The environment of an engine process: a short list of the node's variables, the GPU pin, and what was asked for.

An allow-list and not a block-list, because a secret has no reliable name: mesh secrets, API keys, hub tokens and proxy
addresses with a password in them all stay behind without being known here. Who needs another variable writes it into
`models[].env`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from viiwork_core.contracts.engine import Vendor

MARKER = "VIIWORK_CHILD_OF"
"""Names the node that a process belongs to. The sitter finds by it what left its process group."""

_OWN_PREFIX = "VIIWORK_"

_PASSED = frozenset(
    {
        "PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR",
        # Where libraries and GPU runtimes were installed.
        "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "ROCM_PATH", "HIP_PATH",
        # Cards that newer ROCm no longer lists need it for every program of the machine.
        "HSA_OVERRIDE_GFX_VERSION",
        # Where models are cached and whether the network may be used; never HF_TOKEN.
        "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE",
        "SSL_CERT_FILE", "SSL_CERT_DIR",
    }
)  # fmt: skip
_PASSED_PREFIXES = ("LC_", "XDG_")


GPU_PINS = frozenset(
    {
        "CUDA_DEVICE_ORDER",
        "CUDA_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "GPU_DEVICE_ORDINAL",
        "GGML_VK_VISIBLE_DEVICES",
    }
)
"""Variables that show a process some cards and hide others. Who sets one in `models[].env` has chosen the cards."""


def clean_environment(parent: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a child gets of `parent` (the node's own environment, unless given)."""
    source = os.environ if parent is None else parent
    return {name: value for name, value in source.items() if name in _PASSED or name.startswith(_PASSED_PREFIXES)}


def gpu_pin(vendor: Vendor, gpus: Sequence[int]) -> dict[str, str]:
    """The variables that show a process only the cards with these host indices; no index = no card."""
    cards = ",".join(str(gpu) for gpu in gpus)
    # Vulkan knows none of the vendors' variables: without one of its own, each backend of a Vulkan build spreads over
    # all cards. ggml counts as the Vulkan loader lists: discrete cards first, in PCI order, so these indices are right
    # where all cards have one vendor and one Vulkan driver. On other machines models[].env says better.
    vulkan = {"GGML_VK_VISIBLE_DEVICES": cards}
    if vendor is Vendor.NVIDIA:
        # Without the order the runtime counts by speed, and the index means another card than on the host.
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": cards, **vulkan}
    if vendor is Vendor.AMD:
        return {"ROCR_VISIBLE_DEVICES": cards, **vulkan}
    return {}


def child_environment(
    node_id: str, *layers: Mapping[str, str], parent: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The whole environment of a child: the clean part of `parent`, then `layers`, of which the last wins.

    No VIIWORK_ variable gets through from anywhere, except the marker with this node's id.
    """
    merged = clean_environment(parent)
    for layer in layers:
        merged.update(layer)
    kept = {name: value for name, value in merged.items() if not name.startswith(_OWN_PREFIX)}
    return {**kept, MARKER: node_id}
