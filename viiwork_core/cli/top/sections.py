"""The sections of the picture as lines: nodes, models by node, requests, aliases, caches, events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from viiwork_core.cli.top.lines import Cell, Column, Line, Meaning, Piece, piece, table
from viiwork_core.cli.top.picture import Picture
from viiwork_core.cli.top.words import DASH, count, memory, number, percent, plural, seconds, short, size, total

MOST_ROWS: Final = 200
"""Of one section; the rest is told as a number."""

_KINDS: Final = ("warm", "partly", "cold", "unknown")
_STATES: Final[dict[str, Meaning]] = {
    "alive": "good",
    "ok": "good",
    "done": "good",
    "suspect": "warn",
    "silent": "warn",
    "draining": "warn",
    "parked": "warn",
    "fallback": "warn",
    "shadowed": "warn",
    "unavailable": "bad",
    "failed": "bad",
    "aborted": "bad",
    "lost": "bad",
    "refused": "bad",
}

Rows = Sequence[Sequence[Cell]]


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the picture."""

    title: str
    lines: Sequence[Line]


def head(picture: Picture) -> str:
    """The mesh in one line."""
    cluster, members = picture.cluster, picture.members
    if not cluster:
        return "nothing is known yet"
    models = [one for member in members for one in member.get("models", ())]
    kind = {"none": "no mesh", "open": "an open mesh"}.get(str(cluster.get("mesh")), "a secured mesh")
    busy, slots, queued = (total(one.get(name) for one in models) for name in ("busy", "slots", "queued"))
    parts = [
        f"{kind}, seen from {cluster.get('view', DASH)}",
        plural(len(members), "node", "nodes"),
        plural(len(cluster.get("models", ())), "model", "models"),
        f"{count(busy)} of {count(slots)} slots busy",
        f"{count(queued)} waiting",
    ]
    return piece(", ".join(parts)).text


def sections(picture: Picture, now: float, width: int, wanted: str = "") -> list[Section]:
    """All of them, `width` columns wide; `wanted`: only rows with that text, in any case."""
    makers: Sequence[tuple[str, Sequence[Column], Callable[[], Rows], str]] = (
        ("Nodes", _NODES, lambda: list(map(_node, picture.members)), "No node is known."),
        ("Models by node", _MODELS, lambda: list(_models(picture)), "No node serves a model."),
        ("Requests under way", _REQUESTS, lambda: list(_requests(picture, now)), "No request is under way."),
        ("Aliases", _ALIASES, lambda: list(map(_alias, picture.aliases)), "No name stands for a model."),
        ("Caches that move", _CACHES, lambda: list(_caches(picture)), "No node shares caches."),
        ("Events, the newest first", _EVENTS, lambda: list(_events(picture)), "Nothing has happened of late."),
    )
    return [
        _section(title, columns, make(), none if picture.cluster else "Not known yet.", width, wanted)
        for title, columns, make, none in makers
    ]


def _section(title: str, columns: Sequence[Column], rows: Rows, none: str, width: int, wanted: str) -> Section:
    found = [row for row in rows if _has(row, wanted.lower())] if wanted else rows
    if not found:
        return Section(title, [[Piece(none if not rows else f"None of {len(rows)} has the text.", "faint")]])
    lines = table(columns, found[:MOST_ROWS], width)
    if len(found) > MOST_ROWS:
        lines.append([Piece(f"and {len(found) - MOST_ROWS} more", "faint")])
    return Section(f"{title} ({len(found)})", lines)


def _has(row: Sequence[Cell], wanted: str) -> bool:
    return any(wanted in (cell.text if isinstance(cell, Piece) else cell).lower() for cell in row)


def _state(word: str) -> Piece:
    return piece(word, _STATES.get(word, ""))


_NODES: Final = (
    Column("NODE", keep=True),
    Column("STATE", keep=True),
    Column("BUSY", right=True, keep=True),
    Column("SLOTS", right=True, keep=True),
    Column("WAIT", right=True, keep=True),
    Column("MEMORY", right=True),
    Column("GPUS"),
    Column("VERSION"),
)


def _node(member: dict[str, Any]) -> Sequence[Cell]:
    models, status = member.get("models"), member.get("status") or {}
    figures = [DASH if models is None else count(total(one.get(name) for one in models)) for name in _ROOM]
    state = "silent" if member.get("stale") and member.get("state") == "alive" else str(member.get("state", DASH))
    state = "draining" if member.get("draining") and state == "alive" else state
    used = memory(status.get("host_mem_used_mb"))
    room = f"{used} of {memory(status.get('host_mem_total_mb'))}" if used != DASH else DASH
    version = str(member.get("ver", DASH))
    return piece(member.get("node", DASH), "name"), _state(state), *figures, room, _gpus(status.get("gpus")), version


_ROOM: Final = ("busy", "slots", "queued")


def _gpus(cards: list[dict[str, Any]] | None) -> str:
    if cards is None:
        return DASH
    return "; ".join(map(_gpu, cards)) or "none"


def _gpu(card: dict[str, Any]) -> str:
    load = number(card.get("util"))
    figures = [] if load is None else [percent(load / 100)]
    figures += [memory(card["vram_used_mb"])] if number(card.get("vram_used_mb")) is not None else []
    figures += [f"{card['power_w']:.0f} W"] if number(card.get("power_w")) is not None else []
    return f"{card.get('index', DASH)}: {', '.join(figures) or DASH}"


_MODELS: Final = (
    Column("MODEL", keep=True),
    Column("NODE", keep=True),
    Column("ENGINE"),
    Column("BACKENDS", keep=True),
    Column("BUSY", right=True, keep=True),
    Column("SLOTS", right=True, keep=True),
    Column("WAIT", right=True, keep=True),
    Column("CONTEXT", right=True),
    Column("TOKENS", right=True),
    Column("REUSED", right=True),
)


def _models(picture: Picture) -> Iterator[Sequence[Cell]]:
    found: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = []
    for member in picture.members:
        node, status = str(member.get("node", DASH)), member.get("status") or {}
        more = {str(one["name"]): one for one in status.get("models", ())}
        found += [(str(one["name"]), node, one, more.get(one["name"], {})) for one in member.get("models", ())]
        # What is taken down has no room to report.
        found += [(name, node, one, one) for name, one in more.items() if one.get("parked")]
    last = ""
    for name, node, one, more in sorted(found, key=lambda each: each[:2]):
        first, last = name != last, name
        yield _model(name, node, one, more, first=first)


def _model(name: str, node: str, one: dict[str, Any], more: dict[str, Any], *, first: bool) -> Sequence[Cell]:
    read, reused = number(more.get("prompt_tokens_total")), number(more.get("cached_tokens_total"))
    return (
        piece(name, "name" if first else "faint"),
        node,
        str(one.get("engine", DASH)),
        _state("parked") if one.get("parked") else _backends(one),
        *(count(one.get(figure)) for figure in _ROOM),
        count(one.get("ctx")),
        short(more.get("tokens_total")),
        percent(reused / read) if read and reused is not None else DASH,
    )


def _backends(one: dict[str, Any]) -> Piece:
    healthy, all_ = number(one.get("healthy_backends")), number(one.get("backends"))
    meaning: Meaning = "good" if healthy == all_ else "warn" if healthy else "bad"
    return Piece(f"{count(healthy)} of {count(all_)}", meaning)


_REQUESTS: Final = (
    Column("MODEL", keep=True),
    Column("NODE", keep=True),
    Column("RUNS AT"),
    Column("STATE", keep=True),
    Column("FIRST", right=True, keep=True),
    Column("SO FAR", right=True, keep=True),
    Column("REQUEST"),
)


def _requests(picture: Picture, now: float) -> Iterator[Sequence[Cell]]:
    for one in picture.flights(now):
        way = one.node if one.peer is None else f"{one.node} → {one.peer}"
        state = _state(one.end) if one.end else piece("answering" if one.first is not None else "reading")
        runs = one.runs or f"at {one.peer}"
        yield piece(one.model, "name"), way, runs, state, seconds(one.first), seconds(one.seconds), one.rid


_ALIASES: Final = (
    Column("ALIAS", keep=True),
    Column("TARGET", keep=True),
    Column("FALLBACKS"),
    Column("STATE", keep=True),
    Column("MEANS NOW"),
    Column("BY"),
)


def _alias(one: dict[str, Any]) -> Sequence[Cell]:
    fallbacks = ", ".join(map(str, one.get("fallbacks", ()))) or DASH
    means = str(one.get("resolved") or "nothing")
    state = _state(str(one.get("state", DASH)))
    return (
        piece(one.get("name", DASH), "name"),
        str(one.get("target") or DASH),
        fallbacks,
        state,
        means,
        str(one.get("updated_by", DASH)),
    )


_CACHES: Final = (
    Column("NODE", keep=True),
    Column("SENT", right=True, keep=True),
    Column("BYTES", right=True, keep=True),
    Column("FAILED", right=True),
    Column("DROPPED", right=True),
    Column("TURNS AFTER AN IMPORT"),
)


def _caches(picture: Picture) -> Iterator[Sequence[Cell]]:
    for member in picture.members:
        kv = (member.get("status") or {}).get("kv_share")
        if kv is None:
            continue
        figures = (count(kv.get("sent")), size(kv.get("sent_bytes")), count(kv.get("failed")), count(kv.get("dropped")))
        yield piece(member.get("node", DASH), "name"), *figures, _shares(kv.get("imports", ()))
        yield from map(_link, sorted(kv.get("links", ()), key=lambda one: number(one.get("sent")) or 0, reverse=True))


def _shares(imports: Sequence[dict[str, Any]]) -> str:
    """How much of their prompts the turns reused that followed an import."""
    sums = {kind: total(one.get(kind) for one in imports) for kind in _KINDS}
    whole = sum(sums.values())
    told = [f"{kind} {percent(part / whole)} ({count(part)})" for kind, part in sums.items() if part]
    return ", ".join(told) or "none yet"


def _link(one: dict[str, Any]) -> Sequence[Cell]:
    """What of that went to one member."""
    figures = (count(one.get("sent", 0)), size(one.get("sent_bytes", 0)), count(one.get("failed", 0)), "")
    now = f"{count(one['under_way'])} on the way now" if number(one.get("under_way")) else ""
    return f"→ {one.get('node', DASH)}", *figures, piece(now, "warn")


_EVENTS: Final = (Column("TIME", keep=True), Column("NODE", keep=True), Column("EVENT"))


def _events(picture: Picture) -> Iterator[Sequence[Cell]]:
    for event in picture.happened.newest():
        meaning: Meaning = "faint" if event.get("replay") else ""
        at = time.strftime("%H:%M:%S", time.localtime(float(event["t"])))
        yield piece(at, meaning), piece(event.get("hostname", DASH), meaning), piece(event["message"], meaning)
