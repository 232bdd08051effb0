"""What the field has measured about the kinds of hardware, as settings.

Where a figure stands here or in the README, its source is named; nothing of it was measured for this plugin, except
that a real llama-server takes the flags.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from viiwork_core import ConfigError, Spec, Vendor
from viiwork_llamacpp.options import LlamaCppOptions, Profile, SplitMode

GFX906 = "gfx906"

STEP = 256
"""MiB. The prompt cache is sized in such steps, and one below this is none."""


class Residence(StrEnum):
    """Where the weights of a running model are."""

    CARD = "card"
    RAM = "ram"
    """Also where card and processor share their memory."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a profile sets. Each may be said otherwise in `args`."""

    name: str
    ubatch: int | None = None
    """Tokens that are computed at once; None: as llama-server has it."""

    no_device: bool = False
    """Keep a build for some card from opening one."""

    layers_only: bool = False
    """Several cards are given whole layers, and nothing else."""

    weights_in: Residence = Residence.CARD


PROFILES: Mapping[Profile, Settings] = {
    Profile.GFX906: Settings(GFX906, ubatch=512, layers_only=True),
    Profile.NVIDIA: Settings("nvidia"),
    Profile.CPU: Settings("cpu", no_device=True, weights_in=Residence.RAM),
    Profile.METAL: Settings("metal", weights_in=Residence.RAM),
}

PLAIN = Settings("none")
"""For cards that nobody has measured, or that are not known."""

_VENDORS: Mapping[Profile, Vendor] = {
    Profile.GFX906: Vendor.AMD,
    Profile.NVIDIA: Vendor.NVIDIA,
    Profile.METAL: Vendor.APPLE,
}


def settings(spec: Spec, options: LlamaCppOptions) -> Settings:
    """The profile that holds for a backend. Raises ConfigError when the one that was written cannot."""
    key = f"models[{spec.model}].llamacpp.profile"
    chosen = options.profile
    if chosen is Profile.AUTO:
        return _found(spec)
    if (chosen is Profile.CPU) == bool(spec.gpus):
        what = f"with gpus {list(spec.gpus)}" if spec.gpus else "without gpus"
        raise ConfigError(f"{key}: {chosen.value} {what}", remedy="write auto, or correct models[].gpus")
    return PROFILES[chosen]


def _found(spec: Spec) -> Settings:
    if not spec.gpus:
        return PROFILES[Profile.CPU]
    if spec.vendor is Vendor.AMD:
        # One such card among others decides: what it cannot do, the backend cannot do.
        old = any(card.target == GFX906 for card in spec.cards)
        return PROFILES[Profile.GFX906] if old else PLAIN
    return next((PROFILES[profile] for profile, vendor in _VENDORS.items() if vendor is spec.vendor), PLAIN)


def mismatches(spec: Spec, options: LlamaCppOptions) -> Iterator[str]:
    """What is known of the cards and says that the written profile is another kind's."""
    vendor = _VENDORS.get(options.profile)
    if vendor is None or not spec.gpus:
        return
    if spec.vendor not in (vendor, Vendor.NONE):
        yield f"profile {options.profile.value} is meant for {vendor.value} cards, and these are {spec.vendor.value}'s"
        return
    targets = {card.target for card in spec.cards if card.target}
    if options.profile is Profile.GFX906 and targets and GFX906 not in targets:
        yield f"profile gfx906 is set, and the cards are {', '.join(sorted(targets))}"


def split_mode(spec: Spec, options: LlamaCppOptions) -> SplitMode:
    """How the backend's cards share the model. Raises ConfigError for a mode that the profile rules out."""
    chosen = options.split_mode
    if len(spec.gpus) > 1 and chosen is not SplitMode.LAYER and settings(spec, options).layers_only:
        raise ConfigError(
            f"models[{spec.model}].llamacpp.split_mode: {chosen.value} on {GFX906} cards, which take whole layers only",
            remedy=f"write layer; who has measured otherwise writes --split-mode {chosen.value} into args",
        )
    return chosen


def prompt_cache(available: int, weights: int, backends: int, residence: Residence) -> int:
    """MiB of RAM in which one backend may keep the conversations that left its slots; 0: none.

    Half of what is free, shared out over all backends of the node, since each fills its part in time whatever was free
    when it started. Weights that will lie in that memory are taken off first. `available` and `weights` in bytes.
    """
    free = available - (weights if residence is Residence.RAM else 0)
    share = (free // 2 // max(1, backends)) >> 20
    return max(0, share // STEP * STEP)
