"""The environment of children."""

from __future__ import annotations

from viiwork_core import Vendor
from viiwork_core.engines.environment import child_environment, clean_environment, gpu_pin

PARENT = {
    "PATH": "/bin",
    "LC_ALL": "C",
    "XDG_CACHE_HOME": "/cache",
    "HF_HOME": "/hub",
    "HF_TOKEN": "s3cret",
    "AWS_SECRET_ACCESS_KEY": "s3cret",
    "HTTPS_PROXY": "http://user:s3cret@proxy",
    "VIIWORK_MESH_SECRET": "s3cret",
    "VIIWORK_CHILD_OF": "another node",
    "CUDA_VISIBLE_DEVICES": "7",
    "ROCR_VISIBLE_DEVICES": "7",
    "HIP_VISIBLE_DEVICES": "7",
}
CLEAN = {"PATH": "/bin", "LC_ALL": "C", "XDG_CACHE_HOME": "/cache", "HF_HOME": "/hub"}


def test_only_listed_variables_are_passed() -> None:
    assert clean_environment(PARENT) == CLEAN


def test_the_last_layer_wins_and_the_marker_is_ours() -> None:
    layers = {"A": "pin", "B": "pin"}, {"A": "engine", "VIIWORK_X": "1"}, {"A": "operator", "VIIWORK_CHILD_OF": "x"}
    assert child_environment("me", *layers, parent=PARENT) == {
        **CLEAN,
        "A": "operator",
        "B": "pin",
        "VIIWORK_CHILD_OF": "me",
    }


def test_cards_are_pinned_by_the_vendors_variable_and_by_that_of_vulkan_builds() -> None:
    assert gpu_pin(Vendor.NVIDIA, (0, 2)) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "0,2",
        "GGML_VK_VISIBLE_DEVICES": "0,2",
    }
    assert gpu_pin(Vendor.AMD, (1,)) == {"ROCR_VISIBLE_DEVICES": "1", "GGML_VK_VISIBLE_DEVICES": "1"}
    assert gpu_pin(Vendor.APPLE, (0,)) == {}
    assert gpu_pin(Vendor.NONE, ()) == {}


def test_a_backend_without_cards_sees_none() -> None:
    assert gpu_pin(Vendor.NVIDIA, ())["CUDA_VISIBLE_DEVICES"] == ""
    assert gpu_pin(Vendor.NVIDIA, ())["GGML_VK_VISIBLE_DEVICES"] == ""
    assert gpu_pin(Vendor.AMD, ())["ROCR_VISIBLE_DEVICES"] == ""
