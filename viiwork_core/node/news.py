"""News: what backends and other members tell, passed on to every part of the node that wants to know."""

from __future__ import annotations

from dataclasses import dataclass

from viiwork_core.mesh.capacity import PeerView
from viiwork_core.node.keyring import Keyring
from viiwork_core.node.learning import Learning
from viiwork_core.node.ledger import Ledger
from viiwork_core.node.naming import Naming
from viiwork_core.node.narration import Narration
from viiwork_core.proxy.dispatch import Dispatcher
from viiwork_core.routing.router import Router


@dataclass(frozen=True)
class News:
    """On the data loop."""

    router: Router
    learning: Learning
    narration: Narration
    naming: Naming
    ledger: Ledger
    keyring: Keyring
    dispatcher: Dispatcher

    def saw(self) -> None:
        """The book has taken in what a backend's supervisor said."""
        self.narration.look()
        self.dispatcher.wake()

    def heard(self, view: PeerView) -> None:
        """A member has reported."""
        self.router.report(view)
        self.learning.heard(view)
        self.narration.heard(view)
        self.naming.heard(view)
        self.ledger.heard(view)
        self.keyring.heard(view)
        self.dispatcher.wake()

    def forgot(self, node: str) -> None:
        """A member has left or died."""
        self.router.forget(node)
        self.learning.forgot(node)
        self.narration.forgot(node)
        self.dispatcher.wake()
