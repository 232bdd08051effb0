"""A conversation's cache moves with it, and a damaged cache costs time, never the answer."""

from __future__ import annotations

from dialogue import COLD, LONG, WARM, Conversation
from mesh import FIRST, SECOND, Mesh
from nodes import prose


def test_a_session_moves_and_comes_back(mesh: Mesh) -> None:
    """Beside it another session says the same and stays, which tells what the first node would have answered."""
    moving, staying = Conversation(mesh, "moving"), Conversation(mesh, "staying")
    uploads = mesh.relay.uploads

    first = moving.say(prose(LONG, seed=1), on=FIRST)
    assert first.warmth < COLD
    assert staying.say(prose(LONG, seed=1), on=FIRST).text == first.text
    moving.arrived(mesh.second, turn=1)
    assert mesh.relay.uploads > uploads

    second = moving.say("And what came after that?", on=SECOND)
    assert second.headers["x-viiwork-origin"] == FIRST
    assert second.warmth >= WARM
    assert staying.say("And what came after that?", on=FIRST).text == second.text

    # So long that without this turn's cache the first node would find under nine tenths of the next prompt.
    third = moving.say(prose(LONG, seed=2), on=SECOND)
    assert staying.say(prose(LONG, seed=2), on=FIRST).text == third.text
    moving.arrived(mesh.first, turn=3)

    fourth = moving.say("Was that all?", on=FIRST)
    assert fourth.warmth >= WARM
    assert staying.say("Was that all?", on=FIRST).text == fourth.text
    assert mesh.first.events("kv imported", session=moving.key, turn=3)


def test_later_turns_travel_as_deltas(mesh: Mesh) -> None:
    """Each costs little more than its share of the tokens, and what is put together there is right."""
    moving, staying = Conversation(mesh, "growing"), Conversation(mesh, "growing elsewhere")
    before = 0
    for turn in range(1, 5):
        words = prose(LONG if turn == 1 else 90, seed=10 + turn)
        uploads = len(mesh.relay.sizes)
        text = moving.say(words, on=FIRST).text
        size = moving.arrived(mesh.second, turn).stat().st_size
        sent = sum(mesh.relay.sizes[uploads:])
        assert sent < 1.3 * (size - before), f"turn {turn}: {sent} bytes for {size - before} of {size}"
        assert turn == 1 or size - before < 0.1 * size
        before = size
        assert staying.say(words, on=FIRST).text == text
        mesh.second.heard("kv received", session=staying.key, turn=turn)

    fifth = moving.say("What came last?", on=SECOND)
    assert fifth.warmth >= WARM
    assert staying.say("What came last?", on=FIRST).text == fifth.text
    assert mesh.second.events("kv imported", session=moving.key, turn=4)


def test_the_way_back_is_a_delta(mesh: Mesh) -> None:
    """There, back and there again: after the first time only what is new travels, and all turns find their cache."""
    moving, staying = Conversation(mesh, "to and fro"), Conversation(mesh, "at home")
    ways = [(mesh.first, mesh.second), (mesh.second, mesh.first), (mesh.first, mesh.second)]
    before = 0
    for turn, (node, other) in enumerate(ways, start=1):
        # So long that without the other node's cache less than nine tenths of the next prompt would be found.
        words = prose(LONG if turn == 1 else LONG // 2, seed=30 + turn)
        reply = moving.say(words, on=node.name)
        size = moving.arrived(other, turn).stat().st_size
        (told,) = node.heard("kv sent", session=moving.key, turn=turn)
        assert told["of"] == size
        assert told["bytes"] < 1.1 * (size - before), f"turn {turn}: {told['bytes']} bytes for {size - before} new"
        before = size
        assert staying.say(words, on=FIRST).text == reply.text
        assert turn == 1 or node.events("kv imported", session=moving.key, turn=turn - 1)

    fourth = moving.say("What came last?", on=SECOND)
    assert fourth.warmth >= WARM
    assert staying.say("What came last?", on=FIRST).text == fourth.text
    for node in (mesh.first, mesh.second):
        (model,) = node.get("/v1/kv").json["models"]
        assert 0 < model["sent_share"] < 1


def test_a_transfer_that_broke_off_goes_on(mesh: Mesh) -> None:
    moving = Conversation(mesh, "broken off")
    uploads = len(mesh.relay.sizes)
    with mesh.relay.cutting(after=2_600_000):
        moving.say(prose(2 * LONG, seed=20), on=FIRST)
        size = moving.arrived(mesh.second, turn=1).stat().st_size
    # A session of the test before may still be sent. Between the two come the answers that say where to go on, and what
    # the relay cut while it was at it.
    sizes = mesh.relay.sizes[uploads:]
    broken = next(at for at, sent in enumerate(sizes) if sent >= 2_600_000)
    *_, rest = sizes[broken + 1 :]
    assert rest < size - 1_000_000, "it went on where it had ended"
    assert moving.say("And what came after that?", on=SECOND).warmth >= WARM


def test_a_cache_damaged_on_its_way_is_refused(mesh: Mesh) -> None:
    moving = Conversation(mesh, "damaged on its way")
    damaged = mesh.relay.damaged
    with mesh.relay.damaging():
        moving.say(prose(LONG, seed=3), on=FIRST)
        (refusal,) = mesh.first.heard("kv not sent", session=moving.key)
    assert mesh.relay.damaged == damaged + 1
    assert "422" in refusal["reason"]
    assert moving.key not in mesh.second.replicas()
    assert not [file for file in mesh.second.store.iterdir() if file.suffix == ".tmp"]

    second = moving.say("And what came after that?", on=SECOND)
    assert second.warmth < COLD
    assert second.text == moving.afresh()


def test_a_cache_damaged_on_disk_is_dropped(mesh: Mesh) -> None:
    moving = Conversation(mesh, "damaged on disk")
    moving.say(prose(LONG, seed=4), on=FIRST)
    file = moving.arrived(mesh.second, turn=1)
    with file.open("r+b") as cache:
        cache.seek(file.stat().st_size // 2)
        byte = cache.read(1)[0]
        cache.seek(-1, 1)
        cache.write(bytes((byte ^ 0xFF,)))

    second = moving.say("And what came after that?", on=SECOND)
    assert second.warmth < COLD
    assert second.text == moving.afresh()
    (failure,) = mesh.second.events("kv import failed", session=moving.key)
    assert "damaged" in failure["reason"]
    assert moving.key not in mesh.second.replicas()
    assert not file.exists()
