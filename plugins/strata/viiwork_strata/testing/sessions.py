"""Saving and restoring the live conversation, with the checks in the server's order."""

from __future__ import annotations

import re
import time
from pathlib import Path

from viiwork_strata.testing import session_store
from viiwork_strata.testing.machine import Machine
from viiwork_strata.testing.refusal import Refusal

_FORBIDDEN = set('/\\:*?"<>|')
_MAX_NAME_BYTES = 200
_DEVICE = re.compile(r"(con|prn|aux|nul|com[1-9]|lpt[1-9])(\..*)?", re.IGNORECASE)
"""What Windows takes for a device, whatever its ending."""


def session(machine: Machine, slot: str, action: str | None, name: object) -> dict[str, object]:
    """Save or restore. Strata: "feature off 501 -> batch 501 -> slot 400 -> action 400 -> name 400 -> (restore) missing
    404 -> wait for the FIFO -> engine not alive 503 -> engine". Raises Refusal."""
    folder = _folder(machine)
    if slot != "0":
        raise Refusal(400, f"no slot {slot}: only slot 0 exists")
    if action not in ("save", "restore"):
        raise Refusal(400, f"unknown action {action}")
    path = folder / _checked_name(name)
    if action == "restore" and not path.is_symlink() and not path.exists():
        raise Refusal(404, f"no session file {path.name}")
    with machine.fifo.turn():
        if not machine.loaded:
            raise Refusal(503, "the model is not loaded")
        if not machine.settings.one_stage:
            raise Refusal(400, "sessions need one GPU stage and a prompt cache", kind="invalid")
        return _save(machine, path) if action == "save" else _restore(machine, path)


def _folder(machine: Machine) -> Path:
    if machine.settings.slot_dir is None:
        raise Refusal(501, "session files are off: start the server with --slot-save-path DIR")
    if machine.settings.batch or machine.settings.replicas:
        raise Refusal(501, "session files are not supported with parallel, batch slots or replicas")
    return machine.settings.slot_dir


def _save(machine: Machine, path: Path) -> dict[str, object]:
    machine.phase, started = "saving the session", time.perf_counter()
    (slot,) = machine.places
    if not slot.conversation.tokens:
        raise Refusal(400, "there is no complete session to save", kind="invalid")
    data = session_store.pack(slot.conversation, machine.settings.identity)
    session_store.save(path, data)
    counts = {"n_saved": len(slot.conversation.tokens), "n_written": len(data)}
    return {"id_slot": 0, "filename": path.name, **counts, "timings": {"save_ms": _ms_since(started)}}


def _restore(machine: Machine, path: Path) -> dict[str, object]:
    machine.phase, started = "restoring a session", time.perf_counter()
    (slot,) = machine.places
    data = session_store.load(path)
    slot.conversation = session_store.unpack(data, machine.settings.identity, machine.settings.max_context)
    slot.held = len(slot.conversation.tokens)
    counts = {"n_restored": slot.held, "n_read": len(data)}
    return {"id_slot": 0, "filename": path.name, **counts, "timings": {"restore_ms": _ms_since(started)}}


def _ms_since(started: float) -> float:
    return (time.perf_counter() - started) * 1000


def _checked_name(name: object) -> str:
    """1 to 200 bytes, no control or path character, no dot in front, no dot or space at the end, no device of
    Windows."""
    if not isinstance(name, str) or not 1 <= len(name.encode()) <= _MAX_NAME_BYTES:
        raise Refusal(400, "filename must be a string of 1 to 200 bytes")
    if not name.isprintable() or _FORBIDDEN & set(name) or name.startswith(".") or name.endswith((".", " ")):
        raise Refusal(400, "filename has a character that is not allowed there")
    if _DEVICE.fullmatch(name):
        raise Refusal(400, "filename is a device of Windows")
    return name
