from __future__ import annotations

import socket
import threading
import time

import pytest
import torch.distributed as dist

from powertrip.coordination.messages import (
    Broken,
    Commit,
    Finished,
    LinksGone,
    Probe,
    Probed,
    Stop,
    StopRequest,
)
from powertrip.runtime import control
from powertrip.runtime.control import (
    ENTRIES_KEPT,
    ControlPlane,
    Inbox,
    Log,
    LogReader,
    Outbox,
    delete_prefix,
    job_store,
)
from powertrip.runtime.errors import ControlPlaneError, CoordinatorSilent
from powertrip.runtime.seal import MOST_BYTES, Seal

SECRET = b"sixteen bytes or more"
SEAL = Seal(SECRET)
STOP = Stop(after_round=1, save=None)


def commit(number: int) -> Commit:
    return Commit(generation=1, round=number)


class Plane:
    """A store's server that can be ended, and clients of it."""

    def __init__(self) -> None:
        self.server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.port = self.server.port

    def connect(self) -> dist.Store:
        client = dist.TCPStore("127.0.0.1", self.port, is_master=False)
        return dist.PrefixStore("powertrip/run/0", client)

    def end(self) -> None:
        self.server = None


@pytest.fixture
def plane(monkeypatch):
    # How long a wait on the store lasts says how long it takes to close a reader.
    monkeypatch.setattr(control, "_SLICE_S", 0.05)
    return Plane()


@pytest.fixture
def reader(plane):
    reader = LogReader(ControlPlane(plane.connect), site="oslo", silence_limit_s=20)
    yield reader
    reader.close()


def repeat(write) -> None:
    for _ in range(100):
        write()


def test_entries_are_read_in_the_order_of_the_log(plane, reader):
    log = Log(plane.connect())
    for number in range(10):
        log.append(commit(number))
    assert [reader.next().round for _ in range(10)] == list(range(10))
    log.append(STOP)
    assert reader.next() == STOP


def test_every_site_reads_all_of_the_log_whenever_it_comes(plane, reader):
    log = Log(plane.connect())
    log.append(commit(0))
    log.append(commit(1))
    assert reader.next() == commit(0)
    late = LogReader(ControlPlane(plane.connect), site="rome", silence_limit_s=20)
    assert [late.next(), late.next()] == [commit(0), commit(1)]
    late.close()
    assert reader.next() == commit(1)


def test_an_entry_may_be_waited_for(plane, reader):
    got = []
    waiting = threading.Thread(target=lambda: got.append(reader.next()))
    waiting.start()
    Log(plane.connect()).append(commit(7))
    waiting.join(timeout=20)
    assert got == [commit(7)]


def test_a_stop_is_seen_before_it_is_read(plane, reader):
    log = Log(plane.connect())
    log.append(commit(0))
    assert not reader.stop_seen.is_set()
    log.append(STOP)
    assert reader.stop_seen.wait(20)
    assert reader.next() == commit(0)
    assert reader.next() == STOP


def test_silence_has_a_limit(plane):
    reader = LogReader(ControlPlane(plane.connect), site="oslo", silence_limit_s=0.2)
    with pytest.raises(CoordinatorSilent, match=r"site oslo has heard nothing .* for 0\.2 s"):
        reader.next()
    reader.close()


def test_quiet_slices_are_no_silence(plane, reader):
    log = Log(plane.connect())
    log.append(commit(0))
    assert reader.next() == commit(0)
    threading.Event().wait(4 * control._SLICE_S)
    log.append(commit(1))
    assert reader.next() == commit(1)


def test_the_death_of_the_store_is_an_error_and_ends_training(plane, reader):
    Log(plane.connect()).append(commit(0))
    assert reader.next() == commit(0)
    plane.end()
    assert reader.stop_seen.wait(20)
    with pytest.raises(ControlPlaneError, match="the job's store is gone"):
        reader.next()


def test_writing_to_a_dead_store_is_an_error(plane):
    log, outbox, inbox = Log(plane.connect()), Outbox(plane.connect()), Inbox(plane.connect())
    tidied = plane.connect()
    plane.end()
    with pytest.raises(ControlPlaneError, match="reading the coordinator's inbox failed"):
        inbox.receive(5)
    with pytest.raises(ControlPlaneError, match="tidying the store failed"):
        delete_prefix(tidied, "group")
    # A first write may still go into the socket's buffer.
    with pytest.raises(ControlPlaneError, match="publishing to the sites failed"):
        repeat(lambda: log.append(STOP))
    with pytest.raises(ControlPlaneError, match="reporting to the coordinator failed"):
        repeat(lambda: outbox.send(Finished(site=1)))


def test_a_store_that_cannot_be_reached_is_an_error(plane):
    def refuse():
        raise ControlPlaneError("reaching the store failed")

    reader = LogReader(ControlPlane(refuse), site="oslo", silence_limit_s=20)
    with pytest.raises(ControlPlaneError, match="reaching the store"):
        reader.next()
    assert reader.stop_seen.is_set()
    reader.close()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "its seal is none of this run"),
        ("\x00\xff" * 40, "its seal is none of this run"),
        (commit(0).encode().decode(), "its seal is none of this run"),
        (SEAL.close_entry(1, commit(0).encode()), "its seal is none of this run"),
        (Seal(b"guessed").close_entry(0, commit(0).encode()), "its seal is none of this run"),
        (SEAL.close_entry(0, b'{"kind": "ready"}'), "cannot be read"),
        ("x" * (MOST_BYTES + 100), "of at most"),
    ],
)
def test_what_the_coordinator_has_not_put_there_is_an_error(plane, text, says):
    plane.connect().set("log/0", text)
    reader = LogReader(ControlPlane(plane.connect, SEAL), site="oslo", silence_limit_s=20)
    with pytest.raises(ControlPlaneError, match=says):
        reader.next()
    assert reader.stop_seen.is_set()
    reader.close()


def test_a_log_goes_on_where_it_was_and_is_read_from_any_entry_on(plane):
    Log(plane.connect(), seal=SEAL).append(commit(0))
    log = Log(plane.connect(), seal=SEAL, start=1)
    log.append(commit(1))
    log.append(commit(2))
    reader = LogReader(ControlPlane(plane.connect, SEAL), site="oslo", silence_limit_s=20, start=1)
    assert [reader.next(), reader.next()] == [commit(1), commit(2)]
    reader.close()


def test_a_reader_ends_its_thread(plane):
    reader = LogReader(ControlPlane(plane.connect), site="oslo", silence_limit_s=20)
    names = [thread.name for thread in threading.enumerate()]
    assert "log-reader" in names
    reader.close()
    assert not reader._thread.is_alive()


def test_old_entries_are_deleted(plane):
    store = plane.connect()
    log = Log(store)
    for number in range(ENTRIES_KEPT + 10):
        log.append(commit(number))
    numbers = sorted(
        int(key.rpartition("/")[2]) for key in store.list_keys() if key != "log/length"
    )
    assert numbers == list(range(10, ENTRIES_KEPT + 10))


def test_the_mails_of_all_sites_arrive_each_sites_in_order(plane):
    inbox = Inbox(plane.connect())
    outboxes = [Outbox(plane.connect()) for _ in range(2)]
    for signal in range(5):
        for site, outbox in enumerate(outboxes):
            outbox.send(StopRequest(site=site, signal=signal))
    mails = [inbox.receive(60) for _ in range(10)]
    for site in range(2):
        assert [mail.signal for mail in mails if mail.site == site] == list(range(5))


@pytest.mark.parametrize("timeout_s", [0.05, 0.0, -3.0])
def test_an_empty_inbox_gives_nothing_and_loses_nothing(plane, timeout_s):
    inbox, outbox = Inbox(plane.connect()), Outbox(plane.connect())
    started_s = time.monotonic()
    assert inbox.receive(timeout_s) is None
    assert time.monotonic() - started_s < 20
    outbox.send(Finished(site=1))
    assert inbox.receive(20) == Finished(site=1)
    assert inbox.receive(timeout_s) is None


def test_a_short_wait_for_mail_leaves_the_store_usable(plane):
    store = plane.connect()
    inbox, log = Inbox(store), Log(store)
    assert inbox.receive(0.001) is None
    log.append(commit(1))
    assert delete_prefix(store, "log") == 2  # the entry, and how many there are


def test_mail_can_be_waited_for(plane):
    inbox, got = Inbox(plane.connect()), []
    waiting = threading.Thread(target=lambda: got.append(inbox.receive(20)))
    waiting.start()
    Outbox(plane.connect()).send(Finished(site=3))
    waiting.join(timeout=20)
    assert got == [Finished(site=3)]


def way(name: str) -> bytes:
    return name.encode().ljust(8)


def test_what_no_process_has_sent_is_dropped_counted_and_said_once(plane):
    store, warnings = plane.connect(), []
    inbox = Inbox(plane.connect(), seal=SEAL, sites=3, warn=warnings.append)
    good = Finished(site=1)
    sender, earlier = Seal(SECRET, site=1, incarnation=1), Seal(SECRET, site=1)
    genuine = sender.close_mail(way("a"), 1, good.encode())
    probed = Probed(site=1, number=1, rtt_s=(None,), bandwidth=(None,))
    pushed = {
        "forged": [
            "",
            good.encode().decode(),
            "\x00\xff" * 100,
            Seal(b"guessed", site=1).close_mail(way("a"), 1, good.encode()),
            Seal(SECRET, run=b"r" * 32, site=1).close_mail(way("a"), 1, good.encode()),
            genuine.replace('"site":1', '"site":2'),
            SEAL.close_entry(0, good.encode()),
        ],
        "oversized": ["x" * (MOST_BYTES + 200)],
        "replayed": [genuine, sender.close_mail(way("a"), 1, Finished(site=1).encode())],
        "outdated": [earlier.close_mail(way("b"), 1, good.encode())],
        "unreadable": [
            sender.close_mail(way("c"), 1, b'{"kind": "commit"}'),
            sender.close_mail(way("c"), 2, b'{"kind": "finished", "site": -1}'),
        ],
        "misplaced": [
            sender.close_mail(way("d"), 1, Finished(site=2).encode()),
            sender.close_mail(way("d"), 2, LinksGone(text="gone").encode()),
            sender.close_mail(way("d"), 3, probed.encode()),
            SEAL.close_mail(way("d"), 1, Finished(site=3).encode()),
            SEAL.close_mail(
                way("d"), 2, Broken(site=1, generation=1, round=1, awaited=3, text="").encode()
            ),
        ],
    }
    store.queue_push("inbox", genuine)
    assert inbox.receive(20) == good
    for text in (text for texts in pushed.values() for text in texts):
        store.queue_push("inbox", text)
    # By the same client: what two of them push may arrive in another order.
    Outbox(store, seal=sender).send(good)
    assert inbox.receive(20) == good
    assert inbox.dropped == {fault: len(texts) for fault, texts in pushed.items()}
    assert len(warnings) == len(pushed)
    assert not any(SECRET.decode() in warning for warning in warnings)


def test_a_flood_of_forged_mail_does_not_hold_the_coordinator_up(plane):
    store = plane.connect()
    inbox = Inbox(plane.connect(), seal=SEAL)
    for _ in range(20):
        store.queue_push("inbox", "garbage")
    assert inbox.receive(0.0) is None
    assert inbox.dropped["forged"] == 1


def test_two_ways_of_one_process_may_overtake_each_other(plane):
    inbox, seal = Inbox(plane.connect(), seal=SEAL), Seal(SECRET, site=1)
    first, second = (Outbox(plane.connect(), seal=seal) for _ in range(2))
    for outbox in (second, first, first, second):
        outbox.send(Finished(site=1))
        assert inbox.receive(20) == Finished(site=1)


def test_a_message_that_is_too_large_is_not_sent(plane):
    text = "x" * (MOST_BYTES + 1)
    with pytest.raises(ControlPlaneError, match="too large"):
        Outbox(plane.connect()).send(LinksGone(text=text))
    with pytest.raises(ControlPlaneError, match="too large"):
        Log(plane.connect()).append(Probe(endpoints=(text,)))
    assert Inbox(plane.connect()).receive(0.01) is None


def test_a_prefix_is_deleted_and_nothing_else(plane):
    store = plane.connect()
    for key in ("group/1/a", "group/12/b", "groups/1", "log/1"):
        store.set(key, "x")
    other = dist.PrefixStore("another/job", dist.TCPStore("127.0.0.1", plane.port, is_master=False))
    other.set("group/1/a", "x")
    assert delete_prefix(store, "group") == 2
    assert delete_prefix(store, "group") == 0
    assert sorted(store.list_keys()) == ["groups/1", "log/1"]
    assert other.get("group/1/a") == b"x"


@pytest.fixture
def launcher(monkeypatch):
    """The environment that a launcher sets."""

    def launch(port: int, **variables: str) -> None:
        for name in ("USE_AGENT_STORE", "RUN_ID", "RESTART_COUNT"):
            monkeypatch.delenv(f"TORCHELASTIC_{name}", raising=False)
        for name, value in (
            {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)} | variables
        ).items():
            monkeypatch.setenv(name, value)

    return launch


def test_the_store_of_the_job_is_the_agents(plane, launcher):
    agent = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "x"}
    launcher(plane.port, **agent, TORCHELASTIC_RESTART_COUNT="0")
    first = job_store(host_store=True)  # the agent serves already
    first.set("key", "1")
    assert job_store().get("key") == b"1"
    launcher(plane.port, **agent, TORCHELASTIC_RESTART_COUNT="1")
    assert list(job_store().list_keys()) == []


def test_the_coordinator_serves_the_store_where_no_agent_does(plane, launcher):
    port = plane.port
    plane.end()
    launcher(port)
    served = job_store(host_store=True)
    served.set("key", "1")
    assert job_store().get("key") == b"1"
    # At its own address alone.
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), 20)
    with pytest.raises(ControlPlaneError, match="Address already in use"):
        job_store(host_store=True)


def test_nothing_answers(plane, launcher):
    plane.end()
    launcher(plane.port)
    with pytest.raises(ControlPlaneError, match=f"reaching the store at 127.0.0.1:{plane.port}"):
        job_store(timeout_s=0.5)
