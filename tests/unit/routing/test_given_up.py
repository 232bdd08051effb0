"""Requests for a model whose backends are all dead: nobody waits for what does not come back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from router_scene import Places, there

from viiwork_core.engines.states import BackendState
from viiwork_core.errors import ModelNotServed

DEAD = BackendState.DEAD
WORDS = "exited with code 1; its last lines:\n" + "loading\n" * 200 + "out of memory"


def dies(places: Places, index: int = 0, reason: str | None = WORDS) -> None:
    places.book.see(replace(places.book.view(f"m/{index}"), state=DEAD, reason=reason))


def test_it_is_told_at_once_with_the_engine_s_last_words() -> None:
    places = Places()
    places.backend()
    dies(places)
    with pytest.raises(ModelNotServed) as told:
        places.offer(places.ticket())
    error = told.value
    assert (error.status, error.retry_after) == (503, 5)
    assert error.message.startswith('model "m" has failed on here: exited with code 1; its last lines: loading')
    assert error.message.endswith("out of memory")
    assert "\n" not in error.message
    assert len(error.message) < 400
    assert error.remedy == "mend it, then there: viiwork down m, and viiwork up m"
    assert places.router.next_deadline() is None


def test_who_waits_is_told_too() -> None:
    places = Places()
    places.backend(healthy=False)
    waiting = places.ticket()
    assert places.offer(waiting) is None
    dies(places, reason=None)
    ((ticket, error),) = places.router.lost()
    assert ticket is waiting
    assert error.message == 'model "m" has failed on here: it ended'


def test_as_long_as_one_may_come_back_it_is_waited_for() -> None:
    places = Places()
    places.backend()
    places.backend(index=1, healthy=False)
    dies(places)
    assert places.offer(places.ticket()) is None
    dies(places, 1)
    with pytest.raises(ModelNotServed):
        places.offer(places.ticket())


def test_a_peer_serves_what_is_dead_here_or_may_yet() -> None:
    places = Places()
    places.backend()
    dies(places)
    places.peer("peer", busy=1)
    waiting = places.ticket()
    assert places.offer(waiting) is None
    assert places.router.lost() == []
    places.router.withdraw(waiting)
    places.peer("peer")
    assert there(places.offer(places.ticket()))
    with pytest.raises(ModelNotServed, match="on here: "):
        places.offer(places.ticket(pin="here"))


def test_what_is_dead_everywhere_is_told_too() -> None:
    places = Places()
    places.backend()
    dies(places)
    places.peer("peer", slots=0, backends=0, dead=1)
    with pytest.raises(ModelNotServed, match="on here, peer: exited"):
        places.offer(places.ticket())
    with pytest.raises(ModelNotServed, match=r'^model "m" has failed on peer$'):
        places.offer(places.ticket(pin="peer"))
    places.clock.advance(0.001)
    places.peer("peer", slots=0, backends=0)
    assert places.offer(places.ticket()) is None, "there it only loads"


def test_a_model_that_is_known_from_the_start_is_waited_for() -> None:
    places = Places()
    places.backend(healthy=False)
    assert places.offer(places.ticket()) is None
