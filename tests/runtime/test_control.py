from __future__ import annotations

import threading
import time

import pytest
import torch.distributed as dist

from powertrip.coordination.messages import Commit, Finished, Stop, StopRequest
from powertrip.runtime import control
from powertrip.runtime.control import (
    ENTRIES_KEPT,
    Inbox,
    Log,
    LogReader,
    Outbox,
    delete_prefix,
    job_store,
)
from powertrip.runtime.errors import ControlPlaneError, CoordinatorSilent

STOP = Stop(after_round=1, keeper=None, checkpoint="c.pt")


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
    reader = LogReader(plane.connect, site="oslo", silence_limit_s=20)
    yield reader
    reader.close()


def repeat(write) -> None:
    for _ in range(100):
        write()


def commit(number: int) -> Commit:
    return Commit(generation=1, round=number)


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
    late = LogReader(plane.connect, site="rome", silence_limit_s=20)
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
    reader = LogReader(plane.connect, site="oslo", silence_limit_s=0.2)
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

    reader = LogReader(refuse, site="oslo", silence_limit_s=20)
    with pytest.raises(ControlPlaneError, match="reaching the store"):
        reader.next()
    assert reader.stop_seen.is_set()
    reader.close()


@pytest.mark.parametrize("garbage", ["", "{", '{"kind": "ready"}', "\x00\xff"])
def test_garbage_on_the_log_is_an_error(plane, reader, garbage):
    store = plane.connect()
    store.set("log/0", garbage)
    with pytest.raises(ControlPlaneError, match="cannot be read"):
        reader.next()
    assert reader.stop_seen.is_set()


def test_a_reader_ends_its_thread(plane):
    reader = LogReader(plane.connect, site="oslo", silence_limit_s=20)
    names = [thread.name for thread in threading.enumerate()]
    assert "log-reader" in names
    reader.close()
    assert not reader._thread.is_alive()


def test_old_entries_are_deleted(plane):
    store = plane.connect()
    log = Log(store)
    for number in range(ENTRIES_KEPT + 10):
        log.append(commit(number))
    numbers = sorted(int(key.rpartition("/")[2]) for key in store.list_keys())
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
    assert delete_prefix(store, "log") == 1


def test_mail_can_be_waited_for(plane):
    inbox, got = Inbox(plane.connect()), []
    waiting = threading.Thread(target=lambda: got.append(inbox.receive(20)))
    waiting.start()
    Outbox(plane.connect()).send(Finished(site=3))
    waiting.join(timeout=20)
    assert got == [Finished(site=3)]


def test_garbage_in_the_inbox_is_an_error(plane):
    plane.connect().queue_push("inbox", '{"kind": "commit", "generation": 1, "round": 2}')
    with pytest.raises(ControlPlaneError, match="cannot be read"):
        Inbox(plane.connect()).receive(20)


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


def test_nothing_answers(plane, launcher):
    plane.end()
    launcher(plane.port)
    with pytest.raises(ControlPlaneError, match=f"reaching the store at 127.0.0.1:{plane.port}"):
        job_store(timeout_s=0.5)
