"""The options of the source: the block `mdns`, or `lan`, in `mesh`."""

from __future__ import annotations

from typing import Literal

from viiwork_core import PluginOptions


class MdnsOptions(PluginOptions):
    """How nodes find each other on the local network by themselves."""

    mdns: bool | Literal["auto"] = "auto"
    """auto: on when mesh.network is lan, or unset, or when this block is under the name mdns. true: on beside any
    other network. false: off."""

    interface: str = ""
    """Network interface to speak on, such as eth0. Empty: the one that has this node's address in the mesh, or while
    that is not set or a tailnet's, the default route's."""
