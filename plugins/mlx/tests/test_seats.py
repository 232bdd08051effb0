"""The queue in front of the generation, and the sessions' memory. Neither needs MLX."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from viiwork_mlx.server.seats import Client, ClientGone, Seats
from viiwork_mlx.server.sessions import Sessions

from .conftest import until


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    with near, far:
        yield near, far


def test_a_client_is_there_until_it_closes(ends: tuple[socket.socket, socket.socket]) -> None:
    near, far = ends
    client = Client(near)
    assert not client.gone()
    far.sendall(b"bytes behind the body")
    assert not client.gone()
    far.close()
    assert client.gone()
    assert client.gone()


def test_a_connection_closed_on_this_side_counts_as_gone(ends: tuple[socket.socket, socket.socket]) -> None:
    ends[0].close()
    assert Client(ends[0]).gone()


def waiting(seats: Seats, expected: int) -> bool:
    return seats.waiting == expected


def test_seats_are_given_in_the_order_of_arrival(ends: tuple[socket.socket, socket.socket]) -> None:
    seats, order, client = Seats(1), list[int](), Client(ends[0])

    def sit(number: int) -> None:
        with seats.taken(client):
            order.append(number)

    threads = []
    with seats.taken(client):
        for number in range(4):
            threads.append(threading.Thread(target=sit, args=(number,)))
            threads[-1].start()
            until(partial(waiting, seats, number + 1), "it waits")
        assert seats.busy == 1
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3]
    assert (seats.busy, seats.waiting) == (0, 0)


def test_a_client_that_leaves_the_queue_takes_no_seat(ends: tuple[socket.socket, socket.socket]) -> None:
    seats = Seats(1)
    ends[1].close()
    with seats.taken(Client(ends[0])), pytest.raises(ClientGone), seats.taken(Client(ends[0])):
        pytest.fail("it sat down")
    assert (seats.busy, seats.waiting) == (0, 0)


def test_a_seat_is_free_after_a_failure(ends: tuple[socket.socket, socket.socket]) -> None:
    seats = Seats(1)
    with pytest.raises(KeyError), seats.taken(Client(ends[0])):
        raise KeyError
    assert seats.busy == 0


def test_the_session_that_was_silent_longest_is_forgotten() -> None:
    sessions = Sessions(2)
    sessions.remember("a", [1])
    sessions.remember("b", [2])
    sessions.remember("a", [1, 3])
    sessions.remember("c", [4])
    assert [sessions.ids(key) for key in "abc"] == [[1, 3], [], [4]]
