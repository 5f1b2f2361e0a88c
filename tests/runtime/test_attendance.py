from __future__ import annotations

import queue
import socket
import threading
import time

import pytest

from powertrip.coordination.messages import Back, Gone
from powertrip.runtime.attendance import Attendance
from powertrip.runtime.errors import ControlPlaneError
from powertrip.runtime.handshake import (
    HELLO_BYTES,
    RUN_BYTES,
    Challenger,
    NotAdmitted,
    Verdict,
    presence_key,
    refusal,
)
from powertrip.runtime.line import Line
from powertrip.runtime.presence import RollCall

SECRET = b"sixteen bytes or more"
KEY = presence_key(SECRET)
LIMIT_S, BEAT_S, WAIT_S = 0.2, 0.02, 10.0


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@pytest.fixture
def told() -> queue.SimpleQueue:
    return queue.SimpleQueue()


@pytest.fixture
def open_roll(listener, told):
    opened = []

    def open_roll(secret: bytes = SECRET, **options) -> RollCall:
        listener.setblocking(True)
        options = {"grant": lambda: 7, "run": b"r" * RUN_BYTES} | options
        roll = RollCall(
            listener,
            secret=secret,
            sites=2,
            limit_s=LIMIT_S,
            tell=told.put,
            beat_s=BEAT_S,
            **options,
        )
        opened.append(roll)
        return roll

    yield open_roll
    for roll in opened:
        roll.close()


@pytest.fixture
def attend(listener):
    made = []

    def attend(incarnation: int = 0, **options) -> Attendance:
        options = {"start_limit_s": WAIT_S, "limit_s": LIMIT_S, "secret": SECRET} | options
        attendance = Attendance(
            listener.getsockname(), site=1, incarnation=incarnation, beat_s=BEAT_S, **options
        )
        made.append(attendance)
        return attendance

    yield attend
    for attendance in made:
        attendance.close()


def admit(listener: socket.socket) -> socket.socket:
    """Be a coordinator that admits one site, and then does nothing."""
    listener.settimeout(WAIT_S)
    sock, _ = listener.accept()
    sock.settimeout(WAIT_S)
    challenger = Challenger(KEY)
    sock.sendall(challenger.challenge)
    challenger.check(sock.recv(HELLO_BYTES, socket.MSG_WAITALL))
    sock.sendall(challenger.welcome(0, bytes(RUN_BYTES))[0])
    return sock


def test_a_coordinator_that_is_not_there_yet_is_waited_for(listener, open_roll, attend):
    # Its supervisor listens already, and the connection waits.
    late = threading.Timer(0.3, open_roll)
    late.start()
    attendance = attend(incarnation=4)
    late.join()
    assert (attendance.granted, attendance.run) == (7, b"r" * RUN_BYTES)
    assert not attendance.away.is_set()


def test_the_wait_for_a_coordinator_has_an_end(listener, attend):
    with pytest.raises(ControlPlaneError, match=r"site 1 cannot reach the coordinator at 127\."):
        attend(start_limit_s=0.2)
    listener.close()
    begin_s = time.monotonic()
    with pytest.raises(ControlPlaneError, match="Connection refused"):
        Attendance(
            ("127.0.0.1", free_port()), secret=SECRET, site=1, incarnation=0, limit_s=1,
            start_limit_s=0.2,
        )  # fmt: skip
    assert time.monotonic() - begin_s < 5


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


def test_every_address_of_the_host_is_tried(open_roll, attend, monkeypatch):
    found = socket.getaddrinfo

    def two(host, port, **options):
        (right,) = found(host, port, **options)
        return [(*right[:4], ("127.0.0.2", port)), right]

    open_roll()
    monkeypatch.setattr(socket, "getaddrinfo", two)
    assert not attend().away.is_set()


def test_the_death_of_the_coordinator_is_seen_at_once_and_its_return_too(open_roll, attend, told):
    returned: queue.SimpleQueue = queue.SimpleQueue()
    roll = open_roll()
    attendance = attend(incarnation=1, on_return=returned.put, limit_s=60)
    begin_s = time.monotonic()
    roll.close()
    assert attendance.away.wait(WAIT_S)
    assert time.monotonic() - begin_s < 1
    time.sleep(0.1)
    assert returned.empty()
    second = open_roll(grant=lambda: 99)
    assert returned.get(timeout=WAIT_S) == 99
    assert not attendance.away.is_set()
    assert second.present() == {1: 1}
    assert attendance.granted == 7
    assert told.empty()  # whom the first has known is nobody that the second has lost


def test_a_coordinator_that_is_silent_is_away_and_is_asked_again(listener, open_roll, attend):
    listener.setblocking(True)
    got = []
    silent = threading.Thread(target=lambda: got.append(admit(listener)))
    silent.start()
    attendance = attend()
    silent.join()
    begin_s = time.monotonic()
    assert attendance.away.wait(WAIT_S)
    assert LIMIT_S - 0.05 < time.monotonic() - begin_s < LIMIT_S + 1
    with got[0] as sock:
        sock.recv(4096)
        sock.setblocking(False)
        with pytest.raises(BlockingIOError):  # it has not hung up, so that nobody is lost
            sock.recv(4096)
        open_roll()
        sock.settimeout(WAIT_S)
        while sock.recv(4096):
            pass
    until_s = time.monotonic() + WAIT_S
    while attendance.away.is_set() and time.monotonic() < until_s:
        time.sleep(0.01)
    assert not attendance.away.is_set()


@pytest.mark.parametrize("who", ["site", "coordinator"])
def test_who_was_frozen_goes_on_where_it_was(open_roll, attend, told, monkeypatch, who):
    """A thread is held up for longer than every limit; what the other end says waits for it."""
    open_roll()
    returned: queue.SimpleQueue = queue.SimpleQueue()
    attendance = attend(on_return=returned.put)
    held = []
    beat = Line.beat

    def frozen(line) -> None:
        if not held and (type(line) is Line) == (who == "site"):
            held.append(True)
            time.sleep(3 * LIMIT_S)
        beat(line)

    monkeypatch.setattr(Line, "beat", frozen)
    if who == "site":
        assert told.get(timeout=WAIT_S) == Gone(site=1, incarnation=0, reason="silent")
        assert told.get(timeout=WAIT_S) == Back(site=1, incarnation=0)
        assert not attendance.away.is_set()
        assert returned.empty()
    else:
        assert attendance.away.wait(WAIT_S)
        assert returned.get(timeout=WAIT_S) == 0
        assert not attendance.away.is_set()
    time.sleep(2 * LIMIT_S)
    assert told.empty()
    assert not attendance.away.is_set()


def test_a_coordinator_that_does_not_know_the_secret_is_not_followed(listener, attend):
    def pretend() -> None:
        sock, _ = listener.accept()
        challenger = Challenger(b"guessed")
        sock.sendall(challenger.challenge)
        sock.recv(HELLO_BYTES, socket.MSG_WAITALL)
        challenger._transcript = b""
        sock.sendall(challenger.welcome(0, bytes(RUN_BYTES))[0])
        sock.close()

    thread = threading.Thread(target=pretend)
    thread.start()
    with pytest.raises(NotAdmitted, match="secret") as caught:
        attend()
    thread.join()
    assert caught.value.verdict is Verdict.SECRET


def test_a_process_that_is_replaced_while_it_is_away_learns_it(open_roll, attend):
    roll = open_roll()
    attendance = attend()
    attendance.check()
    later = attend(incarnation=1)
    until_s = time.monotonic() + WAIT_S
    while attendance._thread.is_alive() and time.monotonic() < until_s:
        time.sleep(0.01)
    with pytest.raises(NotAdmitted, match="this one is to end"):
        attendance.check()
    assert attendance.away.is_set()
    assert not later.away.is_set()
    assert roll.present() == {1: 1}


def test_a_refusal_that_passes_is_no_end(listener, open_roll, attend):
    def refuse() -> None:
        sock, _ = listener.accept()
        sock.sendall(Challenger(KEY).challenge)
        sock.recv(HELLO_BYTES, socket.MSG_WAITALL)
        sock.sendall(refusal(Verdict.SLOW))
        sock.close()
        open_roll()

    thread = threading.Thread(target=refuse)
    thread.start()
    assert attend(incarnation=1).granted == 7
    thread.join()


@pytest.mark.parametrize("garbage", [b"HTTP/1.1 200 OK" * 9, b"\0" * 200])
def test_another_program_that_answers_is_told(listener, attend, garbage):
    def answer() -> None:
        sock, _ = listener.accept()
        sock.sendall(garbage)
        sock.close()

    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises(NotAdmitted, match="another program may listen there"):
        attend()
    thread.join()


def test_a_connection_that_is_closed_again_and_again_is_not_tried_ever_faster(listener, attend):
    count = [0]
    ending = threading.Event()

    def slam() -> None:
        listener.settimeout(0.05)
        while not ending.is_set():
            try:
                sock, _ = listener.accept()
            except TimeoutError:
                continue
            count[0] += 1
            sock.close()

    thread = threading.Thread(target=slam)
    thread.start()
    with pytest.raises(ControlPlaneError):
        attend(start_limit_s=0.5)
    ending.set()
    thread.join()
    assert 2 <= count[0] <= 5  # after 0.05, 0.1, 0.2 s, ...


def test_it_can_be_closed_while_the_coordinator_is_away(open_roll, attend):
    roll = open_roll()
    attendance = attend()
    roll.close()
    assert attendance.away.wait(WAIT_S)
    time.sleep(0.2)  # it waits for the next one's challenge
    begin_s = time.monotonic()
    attendance.close()
    assert time.monotonic() - begin_s < 1
    assert not attendance._thread.is_alive()
