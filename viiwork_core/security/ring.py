"""The ring: the secret of the mesh and, while that is changed, the one before it.

One pass over the nodes is enough, since nobody uses the new secret before everybody has it: a node that was given both
opens what either made, and seals and signs with the previous one until `use` says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping

from viiwork_core.errors import ConfigError
from viiwork_core.security.secret import MeshSecret, load_secret


class SecretRing:
    """One or two secrets, one of them in use. Safe to read from any thread."""

    def __init__(self, current: MeshSecret, previous: MeshSecret | None = None) -> None:
        """A `previous` that equals `current` counts as none."""
        self.current = current
        self.previous = previous if previous != current else None
        self._used = self.previous or current

    @property
    def used(self) -> MeshSecret:
        """What this node seals and signs with now."""
        return self._used

    @property
    def all(self) -> tuple[MeshSecret, ...]:
        """What this node opens and believes, the newest first."""
        return (self.current,) if self.previous is None else (self.current, self.previous)

    def use(self, secret_id: str) -> MeshSecret:
        """Seal and sign with this one from now on. Raises ValueError for one that is not in the ring."""
        for secret in self.all:
            if secret.id == secret_id:
                self._used = secret
                return secret
        raise ValueError(f"no secret with the id {secret_id[:8]} in the ring")

    # The keys in use

    @property
    def signature(self) -> bytes:
        return self._used.signature

    @property
    def replica(self) -> bytes:
        return self._used.replica

    @property
    def session(self) -> bytes:
        return self._used.session

    def __repr__(self) -> str:
        return "SecretRing(...)"


def load_ring(environ: Mapping[str, str], *, variable: str, previous: str, open_mesh: bool) -> SecretRing | None:
    """Read the secret from `environ[variable]` and the one before it, if any, from `environ[previous]`.

    None: the mesh is open. Raises ConfigError, naming the variable, as `load_secret` does, and for a previous secret
    beside an open mesh or without a current one.
    """
    if previous == variable:
        remedy = "name another variable, or leave it out"
        raise ConfigError(f"mesh.secret_prev_env: is {variable}, like mesh.secret_env", remedy=remedy)
    current = load_secret(environ, variable=variable, open_mesh=open_mesh)
    before = load_secret(environ, variable=previous, open_mesh=open_mesh) if environ.get(previous, "").strip() else None
    return None if current is None else SecretRing(current, before)
