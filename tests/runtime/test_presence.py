from __future__ import annotations

import queue
import random
import socket
import threading
import time
from collections.abc import Callable

import pytest

from powertrip.coordination.messages import Back, Gone
from powertrip.runtime.attendance import Attendance
from powertrip.runtime.handshake import (
    ANSWER_BYTES,
    CHALLENGE_BYTES,
    HELLO_BYTES,
    Applicant,
    NotAdmitted,
    Verdict,
    presence_key,
)
from powertrip.runtime.presence import RollCall

SECRET = b"sixteen bytes or more"
KEY = presence_key(SECRET)
LIMIT_S, BEAT_S, WAIT_S = 0.2, 0.02, 10.0


def eventually(true: Callable[[], bool]) -> bool:
    until_s = time.monotonic() + WAIT_S
    while not true():
        if time.monotonic() > until_s:
            return False
        time.sleep(0.002)
    return True


class Hall:
    """A roll call, and what it tells."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()
        self.told: queue.SimpleQueue = queue.SimpleQueue()
        self.warnings: list[str] = []
        self.next_entry = 40
        self.roll: RollCall | None = None
        self.closing: list[Callable[[], None]] = []

    def open(self, *, limit_s: float = LIMIT_S, handshake_s: float = 5.0, tell=None) -> RollCall:
        self.roll = RollCall(
            self.listener,
            secret=SECRET,
            sites=3,
            limit_s=limit_s,
            tell=tell or self.told.put,
            grant=lambda: self.next_entry,
            warn=self.warnings.append,
            beat_s=BEAT_S,
            handshake_s=handshake_s,
        )
        self.closing.append(self.roll.close)
        return self.roll

    def attend(self, site: int, incarnation: int = 0, **options) -> Attendance:
        options = {"secret": SECRET, "limit_s": LIMIT_S, "start_limit_s": WAIT_S} | options
        attendance = Attendance(
            self.address, site=site, incarnation=incarnation, beat_s=BEAT_S, **options
        )
        self.closing.append(attendance.close)
        return attendance

    def connect(self) -> socket.socket:
        sock = socket.create_connection(self.address, WAIT_S)
        self.closing.append(sock.close)
        return sock

    def enter(self, site: int, incarnation: int = 0) -> socket.socket:
        """Be admitted, and then say nothing more."""
        sock, applicant = self.connect(), Applicant(KEY, site, incarnation)
        sock.sendall(applicant.hello(sock.recv(CHALLENGE_BYTES, socket.MSG_WAITALL)))
        self.welcome = applicant.welcomed(sock.recv(ANSWER_BYTES, socket.MSG_WAITALL))
        return sock

    def close(self) -> None:
        for close in reversed(self.closing):
            close()
        self.listener.close()


@pytest.fixture
def hall():
    hall = Hall()
    yield hall
    hall.close()


def gone(site: int, incarnation: int, reason: str) -> Gone:
    return Gone(site=site, incarnation=incarnation, reason=reason)


def test_who_is_there_is_known_and_nothing_is_told_of_it(hall):
    roll = hall.open()
    for site in (0, 2):
        assert hall.attend(site).granted == 0
    assert roll.present() == {0: 0, 2: 0}
    time.sleep(2 * LIMIT_S)
    assert roll.present() == {0: 0, 2: 0}
    assert hall.told.empty()


def test_a_process_that_ends_is_told_at_once_and_once(hall):
    roll = hall.open(limit_s=60)
    staying, leaving = hall.attend(0), hall.attend(1)
    begin_s = time.monotonic()
    leaving.close()
    assert hall.told.get(timeout=WAIT_S) == gone(1, 0, "closed")
    assert time.monotonic() - begin_s < 1
    assert roll.present() == {0: 0}
    time.sleep(0.1)
    assert hall.told.empty()
    assert not staying.away.is_set()


def test_a_silent_process_is_told_once_and_again_when_it_is_heard(hall):
    roll = hall.open()
    sock = hall.enter(1)
    begin_s = time.monotonic()
    assert hall.told.get(timeout=WAIT_S) == gone(1, 0, "silent")
    assert LIMIT_S <= time.monotonic() - begin_s + 0.01 < LIMIT_S + 1
    time.sleep(LIMIT_S)
    assert roll.present() == {}
    assert hall.told.empty()
    sock.sendall(hall.welcome.sent.next())
    assert hall.told.get(timeout=WAIT_S) == Back(site=1, incarnation=0)
    assert roll.present() == {1: 0}
    assert hall.told.get(timeout=WAIT_S) == gone(1, 0, "silent")
    sock.close()
    time.sleep(0.1)
    assert hall.told.empty()


def test_a_later_process_of_a_site_takes_the_place_of_an_earlier_one(hall):
    roll = hall.open(limit_s=60)
    old = hall.enter(1)
    new = hall.attend(1, incarnation=1)
    assert new.granted == 40
    assert hall.told.get(timeout=WAIT_S) == gone(1, 0, "closed")
    assert roll.present() == {1: 1}
    while old.recv(4096):
        pass
    with pytest.raises(NotAdmitted, match="a later process of this site is at work") as caught:
        hall.attend(1)
    assert caught.value.exit_code == 1
    assert roll.refused == {"incarnation": 1}
    new.close()
    assert hall.told.get(timeout=WAIT_S) == gone(1, 1, "closed")
    with pytest.raises(NotAdmitted):
        hall.attend(1)
    hall.next_entry = 50
    assert hall.attend(1, incarnation=2).granted == 50
    assert roll.present() == {1: 2}
    assert hall.told.empty()


def test_a_process_that_comes_again_is_back_if_it_had_gone(hall):
    hall.open(limit_s=60)
    first = hall.enter(1)
    second = hall.enter(1)  # its connection was lost before anybody has noticed
    while first.recv(4096):
        pass
    time.sleep(0.05)
    assert hall.told.empty()
    second.close()
    assert hall.told.get(timeout=WAIT_S) == gone(1, 0, "closed")
    hall.enter(1)
    assert hall.told.get(timeout=WAIT_S) == Back(site=1, incarnation=0)


def test_what_the_roll_call_was_late_for_is_no_silence(hall):
    told = []

    def tell(message) -> None:
        told.append(message)
        time.sleep(4 * LIMIT_S)

    roll = hall.open(tell=tell, limit_s=2 * LIMIT_S)
    attendance = hall.attend(0)
    quiet, beats = hall.enter(2), hall.welcome.sent
    hall.enter(1).close()
    assert eventually(lambda: bool(told))
    time.sleep(4 * LIMIT_S)
    for _ in range(8):  # as if the whole machine had been stopped: nothing has come meanwhile
        time.sleep(LIMIT_S / 4)
        quiet.sendall(beats.next())
    assert told == [gone(1, 0, "closed")]
    assert roll.present() == {0: 0, 2: 0}
    assert not attendance.away.is_set()


def test_the_limit_can_be_changed_and_is_never_under_three_beats(hall):
    roll = hall.open(limit_s=60)
    hall.enter(1)
    begin_s = time.monotonic()
    roll.set_limit(0.0)
    assert hall.told.get(timeout=WAIT_S) == gone(1, 0, "silent")
    assert time.monotonic() - begin_s > 2 * BEAT_S


def test_a_beat_that_is_none_ends_the_connection(hall):
    hall.open(limit_s=60)
    sock = hall.enter(1)
    beat = hall.welcome.sent.next()
    sock.sendall(beat)
    time.sleep(0.05)
    assert hall.told.empty()
    sock.sendall(beat)
    assert hall.told.get(timeout=WAIT_S) == gone(1, 0, "closed")


@pytest.mark.parametrize("secret", [b"", b"the secret of another job"])
def test_who_does_not_know_the_secret_is_refused_and_told_what_to_do(hall, secret):
    roll = hall.open()
    for _ in range(2):
        with pytest.raises(NotAdmitted, match=r"runtime\.secret_file or POWERTRIP_SECRET"):
            hall.attend(1, secret=secret)
    assert roll.refused == {"secret": 2}
    assert roll.present() == {}
    (warning,) = hall.warnings
    assert "it does not know the secret (said once)" in warning
    assert SECRET.decode() not in warning


def test_a_site_that_there_is_not_is_refused(hall):
    roll = hall.open()
    with pytest.raises(NotAdmitted, match="the same scenario"):
        hall.attend(3)
    assert roll.refused == {"site": 1}


def test_garbage_is_refused_and_hurts_nobody(hall):
    roll = hall.open()
    attendance = hall.attend(0)
    source = random.Random(3)
    count = 60
    for number in range(count):
        with hall.connect() as sock:
            sock.sendall(source.randbytes(HELLO_BYTES if number % 2 else 1 + number))
            sock.shutdown(socket.SHUT_WR)
            sock.settimeout(WAIT_S)
            try:
                while sock.recv(4096):
                    pass
            except ConnectionResetError:
                pass  # it was not read to its end
    assert roll.refused == {"garbage": count}
    assert not attendance.away.is_set()
    assert roll.present() == {0: 0}


def test_a_handshake_that_was_heard_cannot_be_played_again(hall):
    roll = hall.open(limit_s=60)
    sock, applicant = hall.connect(), Applicant(KEY, 1, 0)
    hello = applicant.hello(sock.recv(CHALLENGE_BYTES, socket.MSG_WAITALL))
    sock.sendall(hello)
    sock.recv(ANSWER_BYTES, socket.MSG_WAITALL)
    again = hall.connect()
    again.recv(CHALLENGE_BYTES, socket.MSG_WAITALL)
    again.sendall(hello)
    with pytest.raises(NotAdmitted) as caught:
        applicant.welcomed(again.recv(ANSWER_BYTES, socket.MSG_WAITALL))
    assert caught.value.verdict is Verdict.SECRET
    assert roll.present() == {1: 0}
    assert hall.told.empty()


def test_who_says_nothing_or_speaks_too_slowly_is_refused(hall):
    roll = hall.open(handshake_s=0.3)
    mute, slow = hall.connect(), hall.connect()
    hello = Applicant(KEY, 1, 0).hello(slow.recv(CHALLENGE_BYTES, socket.MSG_WAITALL))
    until_s = time.monotonic() + WAIT_S
    sent = 0
    while not roll.refused.get("slow") and time.monotonic() < until_s:
        slow.sendall(hello[sent : sent + 1])
        sent += 1
        time.sleep(0.05)
    assert eventually(lambda: roll.refused == {"slow": 2})
    assert sent < len(hello)
    mute.recv(CHALLENGE_BYTES, socket.MSG_WAITALL)
    with pytest.raises(NotAdmitted, match="too slow"):
        Applicant(KEY, 1, 0).welcomed(mute.recv(ANSWER_BYTES, socket.MSG_WAITALL))
    assert hall.attend(1).granted == 0


def test_no_more_than_so_many_connections_wait_and_those_in_stay(hall):
    roll = hall.open(handshake_s=0.5)
    attendance = hall.attend(0)
    waiting = [hall.connect() for _ in range(2 * 3 + 16 + 5)]
    assert eventually(lambda: roll.refused.get("busy") == 5)
    assert len(waiting) == 27
    assert hall.attend(1).granted == 0  # as soon as the others' time is up
    assert not attendance.away.is_set()
    assert roll.refused["slow"] == 22


def test_connections_that_leave_without_a_word_are_no_refusals(hall):
    roll = hall.open()
    for _ in range(5):
        hall.connect().close()
    hall.attend(1)
    assert roll.refused == {}


def test_closing_leaves_no_thread_and_no_connection(hall):
    roll = hall.open()
    attendance = hall.attend(0)
    sock = hall.connect()
    roll.close()
    roll.close()
    assert roll.present() == {}
    assert attendance.away.wait(WAIT_S)
    sock.recv(CHALLENGE_BYTES, socket.MSG_WAITALL)
    assert sock.recv(1) == b""
    assert "roll-call" not in [thread.name for thread in threading.enumerate()]
    assert hall.told.empty()
    attendance.close()
    assert "attendance" not in [thread.name for thread in threading.enumerate()]
