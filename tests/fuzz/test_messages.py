"""What processes tell each other: nothing but their own errors comes of anything else."""

from __future__ import annotations

import json
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powertrip.config import default_path, load_config
from powertrip.coordination.attempt import Attempt
from powertrip.coordination.messages import Begin, Commit, Report
from powertrip.coordination.roster import Record
from powertrip.coordination.setup import Setup
from powertrip.errors import PowerTripError
from powertrip.runtime.attendance import Attendance
from powertrip.runtime.errors import ControlPlaneError
from powertrip.runtime.handshake import (
    ANSWER_BYTES,
    CHALLENGE_BYTES,
    HELLO_BYTES,
    Applicant,
    Challenger,
    NotAdmitted,
    Refused,
    presence_key,
)
from powertrip.runtime.memory import Memory, recall, remember
from powertrip.runtime.seal import Opened, Seal, SealBroken
from powertrip.runtime.wire import decode_entry, decode_opened
from tests.coordination.test_snapshots import MOVING, Played
from tests.fuzz.odd import changed, damaged, fuzzed
from tests.runtime.test_wire import BEGIN, ENTRIES, MAILS

SITES = 4
SEAL = Seal(b"sixteen bytes or more", site=1)
DOCUMENTS = [json.loads(message.encode()) for message in (*ENTRIES, *MAILS)]


def written(value: object) -> bytes:
    return json.dumps(value).encode()


@fuzzed(100)
@given(st.sampled_from(DOCUMENTS).flatmap(changed).map(written) | st.binary())
def test_a_message_is_read_or_refused(data):
    for site in (-1, 1):
        try:
            mail = decode_opened(Opened(site, 0, b"", 1, data), SITES)
            assert getattr(mail, "site", 0) < SITES
        except SealBroken:
            continue
    try:
        entry = decode_entry(data, SITES)
    except ControlPlaneError:
        return
    begin = entry.begin if isinstance(entry, Commit) else entry
    if isinstance(begin, Begin):
        assert set(begin.members) <= set(range(SITES))


@fuzzed(40)
@given(
    st.sampled_from(
        [SEAL.close_entry(1, b"{}"), SEAL.close_mail(b"w" * 8, 1, b"{}"), SEAL.close_note("n", b"")]
    ).flatmap(lambda text: damaged(text.encode()))
)
def test_a_seal_is_right_or_broken(data):
    for open_ in (
        SEAL.open_mail,
        lambda data: SEAL.open_entry(1, data),
        lambda data: SEAL.open_note("n", data),
    ):
        try:
            open_(data)
        except SealBroken:
            continue


@fuzzed(40)
@given(
    challenge=st.binary(min_size=CHALLENGE_BYTES, max_size=CHALLENGE_BYTES),
    hello=st.binary(max_size=HELLO_BYTES) | st.just(b""),
    answer=st.binary(min_size=ANSWER_BYTES, max_size=ANSWER_BYTES),
    data=st.data(),
)
def test_a_handshake_is_done_or_refused(challenge, hello, answer, data):
    key = presence_key(b"sixteen bytes or more")
    challenger, applicant = Challenger(key), Applicant(key, 1, 0)
    genuine = applicant.hello(challenger.challenge)
    for odd in (hello, data.draw(damaged(genuine))[:HELLO_BYTES]):
        if odd != genuine:
            with pytest.raises(Refused):
                challenger.check(odd)
    challenger.check(genuine)
    welcome, *_ = challenger.welcome(3, bytes(32))
    for odd in (answer, data.draw(damaged(welcome)).ljust(ANSWER_BYTES)[:ANSWER_BYTES]):
        if odd != welcome:
            with pytest.raises(NotAdmitted):
                applicant.welcomed(odd)
    assert applicant.welcomed(welcome).granted == 3
    with pytest.raises(NotAdmitted):
        Applicant(key, 1, 0).hello(challenge)


@fuzzed(5)
@given(st.binary(max_size=300))
def test_whatever_listens_in_the_coordinators_place_a_site_ends_in_time(data):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)

        class Told(Attendance):
            def _pause(self) -> None:
                for _ in range(2):
                    try:
                        listener.accept()[0].close()
                    except BlockingIOError:
                        return

        client = socket.create_connection(listener.getsockname())
        client.close()
        with pytest.raises((ControlPlaneError, NotAdmitted)):
            Told(
                listener.getsockname(), secret=data, site=0, incarnation=0, limit_s=1,
                start_limit_s=0.05,
            )  # fmt: skip


class Notes:
    """A store of one note."""

    def __init__(self) -> None:
        self.note = b""

    def set(self, key: str, value: str) -> None:
        self.note = value.encode()

    def get(self, key: str) -> bytes:
        return self.note

    def check(self, keys: list[str]) -> bool:
        return True


SETUP = Setup(load_config(None, [*MOVING, "goal.accuracy=1"]), default_path().parent)


def begun(rounds: int) -> Played:
    """A run of eight sites after some rounds."""
    run = Played(SETUP)
    run._course.start(run._holders)
    run._course.record()
    run.play_rounds(rounds)
    return run


@pytest.fixture(scope="module")
def note() -> dict:
    """What its coordinator leaves."""
    state = begun(3)._course.snapshot()
    ready = state["observer"]["ready"]
    memory = Memory(
        entry=BEGIN, position=3, ready=ready, course=state, holders=(0, 1), wall_time=1.0,
        run_dir="runs/x", records=(Record(site=1, barred_until=9, strikes=2, rejections=1),),
    )  # fmt: skip
    return json.loads(memory.model_dump_json())


@fuzzed(25)
@given(st.data())
def test_what_the_coordinator_has_left_is_taken_over_or_refused(note, data):
    store, run = Notes(), Played(SETUP)
    store.set("", SEAL.close_note("coordinator", written(data.draw(changed(note)))))
    try:
        memory = recall(store, SEAL)
        run._course.restore(memory.course)
    except PowerTripError:
        return
    remember(store, memory, SEAL)
    json.dumps(run._course.snapshot(), allow_nan=False)


REPORT = next(document for document in DOCUMENTS if document["kind"] == "report")


@fuzzed(25)
@given(st.data())
def test_a_report_that_can_be_read_ends_no_run_in_another_way_than_by_its_own_errors(data):
    run = begun(1)
    begin, round_ = run._course.begin, run._course.round + 1
    attempt = Attempt(begin, round_)
    for site in begin.members:
        own = {"site": site, "generation": begin.generation, "round": round_, "digest": "d"}
        report = data.draw(changed(REPORT | own)) if site == begin.members[0] else REPORT | own
        try:
            mail = decode_opened(Opened(site, 0, b"", 1, written(report)), 8)
        except SealBroken:
            return
        if not isinstance(mail, Report) or not attempt.report(mail):
            return
    try:
        run._course.account(attempt.reports)
    except PowerTripError:
        return
    json.dumps(run._course.snapshot(), allow_nan=False)
