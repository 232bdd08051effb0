"""Admission: what the node believes of those who call it, from its secret and its members."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from viiwork_core.clock import Clock
from viiwork_core.config.schema import Config
from viiwork_core.node.meshwork import Mesh
from viiwork_core.security.keys import KeyRing
from viiwork_core.security.logins import Guesses, Logins
from viiwork_core.security.operator_token import write_operator_token
from viiwork_core.security.origins import Origins
from viiwork_core.security.ring import SecretRing, load_ring
from viiwork_core.security.signing import Verifier
from viiwork_core.web.access import Rules
from viiwork_core.web.claims import Claims, Doubts
from viiwork_core.web.greetings import Greetings


def mode_of(mesh: Mesh | None, ring: SecretRing | None) -> str:
    """secured, open or none."""
    return "none" if mesh is None else "secured" if ring else "open"


def secret_of(config: Config, environ: Mapping[str, str]) -> SecretRing | None:
    """The secret of the mesh; None: it is open. Raises ConfigError."""
    mesh = config.mesh
    return load_ring(environ, variable=mesh.secret_env, previous=mesh.secret_prev_env, open_mesh=mesh.open)


def claims_at(config: Config, ring: SecretRing | None, mesh: Mesh | None, *, node_id: str, clock: Clock) -> Claims:
    """The check of what requests claim."""
    verifier = None
    if ring is not None:
        current, *previous = (secret.signature for secret in ring.all)
        verifier = Verifier(current, previous=previous, node_id=node_id, clock=clock)
    mode = mode_of(mesh, ring)
    return Claims(
        verifier,
        _addresses(mesh),
        node=config.node.name if mode == "open" else "",
        mode=mode,
        mesh=config.mesh.name,
        open_uploads=any(model.kv_share.allow_open for model in config.models if model.kv_share),
        doubts=Doubts(clock),
    )


def access_at(config: Config, claims: Claims, keys: KeyRing, *, clock: Clock) -> Rules:
    """Who is let in. Leaves the operator's token in the state folder."""
    cors = config.api.cors
    return Rules(
        claims,
        keys,
        Origins(cors.allow_origins, tailnet=cors.allow_tailnet_ips),
        Logins(keys, clock),
        Guesses(clock),
        cookie=f"viiwork-{config.node.name}",
        operator=write_operator_token(config.node.state_dir),
    )


def greetings_at(config: Config, claims: Claims, *, node_id: str, age_s: Callable[[], float]) -> Greetings:
    """The answers to greetings."""
    return Greetings(claims, node=config.node.name, node_id=node_id, age_s=age_s)


def _addresses(mesh: Mesh | None) -> Callable[[str], Iterable[str]]:
    def of(node: str) -> Iterable[str]:
        members = mesh.membership.members() if mesh else ()
        return (member.host for member in members if member.node == node)

    return of
