"""Which settings follow from which hardware."""

from __future__ import annotations

from dataclasses import replace

import pytest

from viiwork_core import Accelerator, ConfigError, Spec, Vendor
from viiwork_llamacpp.launch import Help, Prepared, command_line
from viiwork_llamacpp.options import LlamaCppOptions
from viiwork_llamacpp.profiles import Residence, mismatches, prompt_cache, settings

GIB = 1 << 30
READY = Prepared(help=Help(cache_ram=True, device=True), cpus=8, available=64 * GIB, weights=8 * GIB)


def card(index: int, target: str | None = None) -> Accelerator:
    return Accelerator(index, target=target)


def on(spec: Spec, vendor: Vendor, *targets: str | None) -> Spec:
    """The spec on as many cards of that vendor."""
    cards = tuple(card(index, target) for index, target in enumerate(targets))
    return replace(spec, vendor=vendor, gpus=tuple(range(len(targets))), cards=cards)


def line(spec: Spec, **options: object) -> str:
    return " ".join(command_line(spec, LlamaCppOptions.model_validate(options), READY))


@pytest.mark.parametrize(
    ("vendor", "targets", "name"),
    [
        (Vendor.NONE, (), "cpu"),
        (Vendor.NVIDIA, (), "cpu"),
        (Vendor.NVIDIA, (None,), "nvidia"),
        (Vendor.AMD, ("gfx906",), "gfx906"),
        (Vendor.AMD, ("gfx1100", "gfx906"), "gfx906"),
        (Vendor.AMD, ("gfx1100",), "none"),
        (Vendor.AMD, (None,), "none"),
        (Vendor.APPLE, (None,), "metal"),
        (Vendor.NONE, (None,), "none"),
    ],
)
def test_auto_is_what_the_cards_are(spec: Spec, vendor: Vendor, targets: tuple[str | None, ...], name: str) -> None:
    assert settings(on(spec, vendor, *targets), LlamaCppOptions()).name == name


def test_auto_on_cards_of_which_nothing_is_known_yet(spec: Spec) -> None:
    assert settings(replace(spec, gpus=(0,), vendor=Vendor.AMD), LlamaCppOptions()).name == "none"


@pytest.mark.parametrize(
    ("vendor", "targets", "present", "absent"),
    [
        (Vendor.NONE, (), ["--device none", "--n-gpu-layers 0", "--cache-ram 28672"], ["--ubatch-size"]),
        (Vendor.NVIDIA, (None,), ["--flash-attn on", "--cache-ram 32768"], ["--ubatch-size", "--device", "--split"]),
        (
            Vendor.AMD,
            ("gfx906", "gfx906"),
            ["--split-mode layer --tensor-split 1,1", "--ubatch-size 512", "--cache-ram 32768"],
            ["--device", "--main-gpu"],
        ),
        (Vendor.APPLE, (None,), ["--flash-attn on", "--cache-ram 28672"], ["--ubatch-size", "--device"]),
    ],
)
def test_what_a_profile_sets(
    spec: Spec, vendor: Vendor, targets: tuple[str | None, ...], present: list[str], absent: list[str]
) -> None:
    words = line(on(spec, vendor, *targets))
    assert [one for one in present if one not in words] == []
    assert [one for one in absent if one in words] == []


@pytest.mark.parametrize(
    ("args", "env", "flag", "count"),
    [
        (("-ub", "1024"), {}, "--ubatch-size", 0),
        (("--ubatch_size", "1024"), {}, "--ubatch-size", 0),
        ((), {"LLAMA_ARG_UBATCH": "1024"}, "--ubatch-size", 0),
        (("-cram", "0"), {}, "--cache-ram", 0),
        ((), {"LLAMA_ARG_CACHE_RAM": "0"}, "--cache-ram", 0),
        (("--cache-ram", "100"), {}, "--cache-ram", 1),
    ],
)
def test_the_operator_overrides_each(
    spec: Spec, args: tuple[str, ...], env: dict[str, str], flag: str, count: int
) -> None:
    argv = command_line(replace(on(spec, Vendor.AMD, "gfx906"), args=args, env=env), LlamaCppOptions(), READY)
    assert argv.count(flag) == count
    assert argv[len(argv) - len(args) :] == args


def test_a_cpu_backend_may_be_given_a_device_by_hand(spec: Spec) -> None:
    assert "--device none" not in line(replace(spec, args=("-ngl", "10")))
    assert line(replace(spec, args=("--device", "Vulkan0"))).count("--device") == 1


def test_a_build_that_does_not_know_a_flag_is_not_given_it(spec: Spec) -> None:
    argv = command_line(spec, LlamaCppOptions(), replace(READY, help=Help()))
    assert {"--cache-ram", "--device"}.isdisjoint(argv)


def test_cards_that_take_whole_layers_take_no_rows(spec: Spec) -> None:
    pair = on(spec, Vendor.AMD, "gfx906", "gfx906")
    with pytest.raises(ConfigError, match=r"models\[m\]\.llamacpp\.split_mode: row on gfx906") as caught:
        line(pair, split_mode="row")
    assert "--split-mode row into args" in caught.value.remedy
    assert line(replace(pair, args=("--split-mode", "row"))).endswith("--split-mode row")
    assert "--split-mode row" in line(on(spec, Vendor.NVIDIA, None, None), split_mode="row")
    assert "--split-mode" not in line(on(spec, Vendor.AMD, "gfx906"), split_mode="row")


def test_a_profile_that_cannot_be_is_refused(spec: Spec) -> None:
    for vendor, targets, profile in [(Vendor.NONE, (), "nvidia"), (Vendor.NVIDIA, (None,), "cpu")]:
        with pytest.raises(ConfigError, match=rf"models\[m\]\.llamacpp\.profile: {profile} with") as caught:
            line(on(spec, vendor, *targets), profile=profile)
        assert caught.value.remedy


@pytest.mark.parametrize(
    ("vendor", "target", "profile", "words"),
    [
        (Vendor.AMD, "gfx906", "gfx906", ""),
        (Vendor.NONE, None, "gfx906", ""),
        (Vendor.AMD, None, "gfx906", ""),
        (Vendor.AMD, "gfx1100", "gfx906", "the cards are gfx1100"),
        (Vendor.AMD, "gfx906", "nvidia", "meant for nvidia cards, and these are amd's"),
        (Vendor.AMD, "gfx906", "auto", ""),
    ],
)
def test_a_profile_of_other_cards_is_told(
    spec: Spec, vendor: Vendor, target: str | None, profile: str, words: str
) -> None:
    options = LlamaCppOptions.model_validate({"profile": profile})
    said = " ".join(mismatches(on(spec, vendor, target), options))
    assert words in said
    assert bool(said) == bool(words)


@pytest.mark.parametrize(
    ("available", "weights", "backends", "residence", "mib"),
    [
        (64 * GIB, 30 * GIB, 1, Residence.CARD, 32768),
        (64 * GIB, 30 * GIB, 1, Residence.RAM, 17408),
        (64 * GIB, 30 * GIB, 8, Residence.CARD, 4096),
        (64 * GIB, 70 * GIB, 1, Residence.RAM, 0),
        (GIB, 0, 3, Residence.CARD, 0),
        (GIB + GIB // 2, 0, 1, Residence.CARD, 768),
        (0, 0, 0, Residence.CARD, 0),
    ],
)
def test_the_prompt_cache_is_a_share_of_what_is_free(
    available: int, weights: int, backends: int, residence: Residence, mib: int
) -> None:
    assert prompt_cache(available, weights, backends, residence) == mib


def test_all_backends_of_the_node_share_the_memory(spec: Spec) -> None:
    nvidia = on(spec, Vendor.NVIDIA, None)
    assert "--cache-ram 8192" in line(replace(nvidia, backends=2, node_backends=4))
    assert "--cache-ram 16384" in line(replace(nvidia, backends=2))
