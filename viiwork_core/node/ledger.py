"""The ledger: what a node tells of the caches that move, and what the operator may ask of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from viiwork_core.clock import Clock
from viiwork_core.config.schema import Config
from viiwork_core.engines.slots import SlotBook
from viiwork_core.kvshare.caches import Caches
from viiwork_core.mesh.capacity import PeerView
from viiwork_core.node.background import Background
from viiwork_core.node.forgetting import Forgetting
from viiwork_core.node.learning import Learning
from viiwork_core.node.meshwork import Mesh
from viiwork_core.node.models import Models
from viiwork_core.node.plans import Planned
from viiwork_core.security.ring import SecretRing
from viiwork_core.security.secret import SessionKeys

_KEY: Final = re.compile(r"[0-9a-f]{32}")


def store_room(config: Config) -> int:
    """Bytes of disk for the replicas of others, and as many for the files to be sent."""
    return int(sum(model.kv_share.max_gib for model in config.models if model.kv_share) * (1 << 30))


class Ledger:
    """On the data loop."""

    def __init__(
        self,
        config: Config,
        secret: SecretRing | None,
        models: Models,
        book: SlotBook,
        learning: Learning,
        clock: Clock,
    ) -> None:
        self._config = config
        self._models = models
        self._book = book
        self._clock = clock
        self._keys = SessionKeys(secret, mesh=config.mesh.name)
        self._forgetting = Forgetting(config, learning, secured=secret is not None)
        self._caches: Caches | None = None

    async def open(self) -> None:
        """Read what was forgotten before. Raises ConfigError."""
        await self._forgetting.open()

    def follow(self, caches: Caches, mesh: Mesh | None, background: Background) -> None:
        """These are the caches, and the mesh that they move in."""
        self._caches = caches
        self._forgetting.follow(caches, mesh, background)

    def heard(self, view: PeerView) -> None:
        """A member has reported."""
        self._forgetting.heard(view)

    @property
    def digest(self) -> str:
        """The digest of all that is forgotten."""
        return self._forgetting.digest

    def buried(self, session: str) -> int | None:
        """The turn up to which a session is forgotten; None: it is not."""
        return self._forgetting.buried(session)

    # What the API reports

    def unmovable(self, model: str, fingerprint: str) -> str | None:
        """Why the model's caches are not moved any more; None: they are."""
        return self._caches.unmovable(model, fingerprint) if self._caches else None

    def mark(self, model: Planned) -> dict[str, Any] | None:
        """A model's part in kv_share; None: its configuration asks for none."""
        if model.unshared is not None:
            return {"state": "off", "reason": model.unshared}
        if model.shared is None:
            return None
        state, reason = self._state(model)
        why = {} if reason is None else {"reason": reason}
        told = self._caches.tally.told(model.name) if self._caches else {}
        return {"state": state, **why, "group": model.shared.group, **told}

    def _state(self, model: Planned) -> tuple[str, str | None]:
        if self._caches is None or not self._caches.shares:
            return "off", "it begins with the next start of the node"
        views = [view for view in self._book.views() if view.model == model.name]
        unmovable = (self.unmovable(model.name, view.fingerprint) for view in views if view.fingerprint)
        refused = next(filter(None, unmovable), None) or next((view.unshared for view in views if view.unshared), None)
        if refused is not None:
            return "off", refused
        prints = {view.fingerprint for view in views if view.fingerprint}
        if not prints:
            return "waiting", "no backend is ready, or its files are still read"
        return ("on", None) if len(prints) == 1 else ("off", "the model's backends differ in their settings or files")

    def overview(self) -> dict[str, Any]:
        """GET /v1/kv: the sessions whose caches are here, and each model's figures."""
        caches = self._caches
        shares = caches is not None and caches.shares
        room = {"used_bytes": caches.used_bytes, "max_bytes": store_room(self._config)} if caches and shares else {}
        models = [{"name": one.name, **mark} for one in self._models if (mark := self.mark(one)) is not None]
        sessions = [] if caches is None else [*self._live(caches), *self._replicas(caches)]
        return {
            "node": self._config.node.name,
            "store": room,
            "models": models,
            "sessions": sessions,
            "forgotten": self._forgetting.count,
        }

    def _live(self, caches: Caches) -> list[dict[str, Any]]:
        views = [(view.id, view.model, view.incarnation) for view in self._book.views()]
        return [
            {
                "session": held.session,
                "model": model,
                "where": "engine",
                "backend": backend,
                **({} if slot is None else {"slot": slot}),
                "turn": held.turn,
                "tokens": held.tokens,
            }
            for backend, model, incarnation in views
            for slot, held in caches.holdings.all(backend, incarnation)
        ]

    def _replicas(self, caches: Caches) -> list[dict[str, Any]]:
        now = self._clock.monotonic()
        return [
            {
                "session": replica.header.session,
                "model": replica.header.model,
                "where": "replica",
                "turn": replica.header.turn,
                "tokens": replica.header.tokens,
                "bytes": replica.header.length,
                "age_s": round(now - replica.since, 1),
            }
            for replica in caches.replicas()
        ]

    # What the operator asks for

    async def forget(self, name: str) -> dict[str, Any]:
        """Forget a session, by the client's name for it or by its key, here and at all members. Raises ViiworkError."""
        # A client may call its session by 32 hex digits: then both are forgotten, since nobody can tell them apart.
        found = {self._keys.session_key(name), *([name] if _KEY.fullmatch(name) else [])}
        return {"node": self._config.node.name, **await self._forgetting.forget(sorted(found))}

    async def told(self, turns: Mapping[str, int]) -> dict[str, Any]:
        """A member tells that these sessions are forgotten, each up to a turn. Raises ViiworkError."""
        return {"node": self._config.node.name, "replicas": await self._forgetting.told(turns)}

    def page(self) -> bytes:
        """What is forgotten, for a member."""
        return self._forgetting.page()
