"""The keyring: the API keys that count on this node, and what each may ask for."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import structlog

from viiwork_core.clock import Clock
from viiwork_core.config.schema import Config
from viiwork_core.errors import Forbidden, KeyConflict, ModelForbidden
from viiwork_core.mesh.capacity import PeerView
from viiwork_core.mesh.key_book import KeyBook
from viiwork_core.mesh.key_table import KeyWrite
from viiwork_core.mesh.member import Member
from viiwork_core.mesh.table_exchange import TableExchange
from viiwork_core.node.addresses import Places
from viiwork_core.node.background import Background
from viiwork_core.node.meshwork import Mesh
from viiwork_core.node.spending import Spending
from viiwork_core.security.keys import ApiKey, KeyRing
from viiwork_core.web import keys

_log = structlog.get_logger("viiwork.keys")


class Keyring:
    """On the data loop. Keys come from this node's configuration and, except in an open mesh, from the table that all
    nodes have."""

    def __init__(
        self, config: Config, places: Places, reports: Callable[[], Sequence[PeerView]], clock: Clock, *, secured: bool
    ) -> None:
        """`reports`: what every other member said last."""
        self.ring = KeyRing()
        self.spending = Spending(config.node.state_dir, clock)
        self._clock = clock
        self._places = places
        self._reports = reports
        self._open_mesh = places.in_mesh and not secured
        self._configured = tuple(one.key for one in config.api.keys)
        self._book = KeyBook(config.node.state_dir, node=config.node.name, clock=clock, changed=self._renew)
        self._exchange: TableExchange[KeyWrite] | None = None
        self._members: Callable[[], Sequence[Member]] = tuple
        self._unknown = dict[str, str]()
        """By node, the digest of its table, where that is not known here yet, or not all of it can be read. A node that
        has no keys, or cannot have any, says nothing about those of the others."""

    async def open(self) -> None:
        """Read what was known before. Raises ConfigError when the keys cannot be read."""
        if not self._open_mesh:
            await self._book.open()
        await asyncio.to_thread(self.spending.restore)
        self._renew()

    def follow(self, mesh: Mesh | None, background: Background) -> None:
        """Take part in the mesh's table, and write down what is used. Says whether the API is open."""
        self._announce()
        background.serve(self.spending.save_often())
        if mesh is None or self._open_mesh:
            return
        self._members = mesh.membership.members
        self._exchange = TableExchange(
            self._book,
            mesh.links,
            path=keys.PATH,
            digest_in=lambda report: report.keys,
            clock=self._clock,
            spawn=background.serve,
        )

    def reload(self, config: Config) -> None:
        """The configuration was read again."""
        configured = tuple(one.key for one in config.api.keys)
        if configured != self._configured:
            self._configured = configured
            self._renew()
            _log.info("keys of the configuration", keys=[key.name for key in configured])

    def _renew(self) -> None:
        self._unknown = {node: digest for node, digest in self._unknown.items() if not self._book.understands(digest)}
        own = {key.name for key in self._configured}
        shared = [key for key in self._book.keys if key.name not in own]
        # A node that has just come must not be open for the moment that it takes to fetch the keys of the mesh.
        self.ring.replace([*shared, *self._configured], closed=self._book.closed or bool(self._unknown))

    def _announce(self) -> None:
        if self.ring:
            _log.info("clients must show an API key", keys=len(self.ring))
            return
        hosts = self._places.hosts or (self._places.host,)
        wide = [host for host in hosts if not ipaddress.ip_address(host).is_loopback]
        if self._places.later is not None:
            wide.append("that of the mesh")
        remedy = "make a key: viiwork key new NAME" if not self._open_mesh else "keys need a mesh with a secret"
        if wide:
            reason = "there are no API keys: whoever reaches these addresses may use it"
            _log.warning("the API is open", addresses=wide, reason=reason, remedy=remedy)
        else:
            _log.info("the API is open to this machine", reason="there are no API keys", remedy=remedy)

    # What comes from members

    @property
    def digest(self) -> str | msgspec.UnsetType:
        """The digest of the whole table; unset in an open mesh."""
        return msgspec.UNSET if self._open_mesh else self._book.table.digest

    def heard(self, view: PeerView) -> None:
        """A member has reported."""
        if self._exchange is None:
            return
        self._exchange.heard(view)
        self.spending.heard(view)
        digest = view.report.keys
        unknown = digest if digest and not self._book.understands(digest) else None
        if unknown != self._unknown.get(view.member.node):
            self._unknown.pop(view.member.node, None)
            if unknown is not None:
                self._unknown[view.member.node] = unknown
            self._renew()

    # What requests ask

    def admit(self, key: ApiKey, model: str, alias: str | None) -> None:
        """Let a client's request through. Raises ModelForbidden, AllowanceSpent."""
        self.spending.requests[key.name] += 1
        if not (key.allows(model) or (alias is not None and key.allows(alias))):
            what = f"API key {key.name} is not for the model {alias or model}"
            raise ModelForbidden(what, remedy="GET /v1/models lists those that it is for")
        self.spending.allowance.check(key)

    # What the API tells and takes

    def infos(self) -> list[dict[str, Any]]:
        """All keys that count, and what they have used."""
        return [self._info(key) for key in sorted(self.ring, key=lambda one: one.name)]

    def info(self, name: str) -> dict[str, Any]:
        """One key with who has it. Raises NotFound."""
        found = next((key for key in self._configured if key.name == name), None)
        if found is not None:
            return self._info(found)
        write, *_ = self._book.entry(name)
        digests = {view.member.node_id: view.report.keys or None for view in self._reports()}
        members = self._book.having(name, self._members(), digests)
        told = {"name": name, "revoked": True} if write.deleted else self._info(write.key(name))
        return {**told, "members": members}

    def _info(self, key: ApiKey) -> dict[str, Any]:
        configured = key in self._configured
        written = {} if configured else self._written(key.name)
        return {
            "name": key.name,
            "weight": key.weight,
            "daily_tokens": key.daily_tokens,
            "models": key.models,
            "used_today": self.spending.allowance.used(key.name),
            "from": "config" if configured else "mesh",
            **written,
        }

    def _written(self, name: str) -> dict[str, Any]:
        write, *_ = self._book.entry(name)
        return {"updated_at": write.ts, "updated_by": write.by}

    def page(self, after: str) -> bytes:
        """The part of the table that follows a name."""
        return self._book.text.encode_page(self._book.table, after)

    async def create(self, key: ApiKey) -> bool:
        """Let a key count on all nodes; whether that is news. Raises ViiworkError."""
        self._check_shared(key.name)
        if any(other.digest == key.digest for other in self._configured):
            raise KeyConflict("this token is a key already", remedy="make another one")
        return await self._book.create(key)

    async def revoke(self, name: str, *, opens: bool) -> None:
        """Let a key count no more, on any node. Raises ViiworkError."""
        self._check_shared(name)
        await self._book.revoke(name, opens=opens, others=bool(self._configured))

    def _check_shared(self, name: str) -> None:
        if self._open_mesh:
            what = "keys cannot be kept in an open mesh: any machine could join it and ask without a key"
            raise Forbidden(what, remedy="give the mesh a secret")
        if any(key.name == name for key in self._configured):
            remedy = "change it there, and reload it with SIGHUP"
            raise KeyConflict(f"key {name} stands in api.keys of this node's configuration", remedy=remedy)
