from __future__ import annotations

from queue import SimpleQueue
from threading import Event

import pytest

from powertrip.coordination.messages import Begin, Commit, Hurry, Probe, Stop
from powertrip.runtime import orders as orders_module
from powertrip.runtime.orders import Orders

ME = 1


class Nothing(Exception):
    """A site would wait."""


class Reader:
    """In place of the log's thread: what is told is announced at once, and read later."""

    def __init__(self, *args, on_entry, **settings) -> None:
        self._on_entry = on_entry
        self._queue: SimpleQueue = SimpleQueue()
        self.stop_seen = Event()

    def tell(self, *entries) -> None:
        for entry in entries:
            if isinstance(entry, Stop):
                self.stop_seen.set()
            self._on_entry(entry)
            self._queue.put(entry)

    def next(self):
        if self._queue.empty():
            raise Nothing
        return self._queue.get()

    def look_up(self) -> None:
        self._queue.put(None)

    def close(self) -> None:
        pass


@pytest.fixture
def told(monkeypatch):
    """Orders, and what they have called."""
    monkeypatch.setattr(orders_module, "LogReader", Reader)

    class Told:
        def __init__(self) -> None:
            self.calls: list = []
            self.away = False

            def heard(name):
                return lambda *news: self.calls.append((name, *news))

            names = ("begin", "commit", "probe", "save", "recall", "change")
            self.orders = Orders(
                None, site=ME, name="rome", silence_limit_s=1, alone=lambda: self.away,
                **{f"on_{name}": heard(name) for name in names},
            )  # fmt: skip
            self.tell = self.orders._reader.tell

        def awaits(self, round_, begin) -> bool:
            return self.orders.await_commit(round_, begin, doing=round_ + 1)

        def of(self, name) -> list:
            return [call[1:] for call in self.calls if call[0] == name]

    return Told()


def begin(generation, *members, first=1, redo=False, rounds=1, limit_s=None, following=None):
    return Begin(
        generation=generation, members=members, steps=(1,) * len(members), deadline_s=None,
        first_round=first, transfers=(), redo=redo, rounds=rounds, limit_s=limit_s,
        following=following, clock_s=0.0,
    )  # fmt: skip


def commit(round_, *, after_next=None, generation=1, limit_s=None) -> Commit:
    return Commit(generation=generation, round=round_, begin=after_next, limit_s=limit_s)


STOP = Stop(after_round=1, save=None)


def test_generations_come_in_the_order_of_the_log(told):
    with pytest.raises(Nothing):
        told.orders.next_generation()
    first, second = begin(1, 0, 1), begin(2, 1, 2, first=3)
    told.tell(first, commit(1, after_next=second), STOP)
    assert told.of("begin") == [(first,), (second,)]  # before any of it is read
    assert told.orders.next_generation() == first
    assert not told.orders.relieved
    assert told.awaits(1, first)
    assert told.of("commit") == [(1,)]
    assert told.orders.relieved
    assert told.orders.next_members == {1, 2}
    assert told.orders.stop is None
    assert told.orders.ends
    assert told.orders.next_generation() == second
    assert told.orders.next_members is None
    assert told.orders.next_generation() is None
    assert told.orders.stop == STOP


def test_a_generation_may_bring_the_one_after_it(told):
    second = begin(2, 1, 2, first=2)
    first = begin(1, 0, 1, following=second)
    told.tell(first)
    assert told.of("begin") == [(first,), (second,)]
    assert told.orders.next_generation() == first
    assert told.orders.relieved
    assert told.orders.next_generation() == second


def test_a_site_waits_for_the_commit_of_the_round_before(told):
    first = begin(1, 0, 1)
    told.tell(first)
    told.orders.next_generation()
    assert told.awaits(0, first)
    with pytest.raises(Nothing):
        told.awaits(1, first)
    told.tell(commit(1))
    assert told.awaits(1, first)
    assert told.awaits(1, first)


def test_without_the_coordinator_it_goes_on_to_the_end_of_the_interval(told):
    first = begin(1, 0, 1, first=5, rounds=3)
    told.tell(first)
    told.orders.next_generation()
    told.away = True
    assert told.awaits(5, first)
    assert told.awaits(6, first)
    with pytest.raises(Nothing):
        told.awaits(7, first)
    assert told.of("commit") == []


def test_a_round_that_is_done_again_relieves_who_waits_for_it(told):
    first = begin(1, 0, 1, 2)
    again = begin(2, 0, 1, first=2, redo=True)
    told.tell(first)
    told.orders.next_generation()
    told.tell(commit(1), again)
    assert told.of("change") == [()]
    assert told.orders.relieved_of(first)
    assert told.orders.pointless(first)
    assert not told.awaits(2, first)
    assert told.orders.next_generation() == again
    assert not told.orders.relieved_of(again)
    assert told.of("commit")[-1] == (1,)  # nobody goes back behind it


def test_what_a_newer_generation_has_superseded_is_passed_over(told):
    """Its groups have been cancelled as soon as that one was announced."""
    first, second = begin(1, 0, 1, 2), begin(2, 1, 2, first=3)
    again, once_more = (begin(n, 0, 1, first=2, redo=True) for n in (3, 4))
    told.tell(first)
    told.orders.next_generation()
    told.tell(commit(1, after_next=second))
    assert told.awaits(1, first)
    told.tell(again, once_more)
    assert told.orders.next_generation() == once_more


def test_after_a_round_that_failed_the_next_generation_is_not_served(told):
    first = begin(1, 0, 1)
    told.tell(first, commit(1, after_next=begin(2, 1, 2, first=3)))
    told.orders.next_generation()
    told.awaits(1, first)
    told.orders.forget_upcoming()
    assert not told.orders.relieved
    again = begin(3, 0, 1, first=2, redo=True)
    told.tell(again)
    assert told.orders.next_generation() == again


def test_a_round_that_is_done_again_is_not_forgotten(told):
    first, again = begin(1, 0, 1), begin(2, 0, 1, redo=True)
    told.tell(first)
    told.orders.next_generation()
    told.tell(again)
    told.orders._read()
    told.orders.forget_upcoming()
    assert told.orders.next_generation() == again


@pytest.mark.parametrize(
    ("again", "cut", "kept"),
    [
        (begin(2, 0, ME, first=4, redo=True), False, True),  # the same round: it goes on
        (begin(2, 0, ME, first=3, redo=True), True, False),  # the one before: on another model
        (begin(2, 0, 2, first=4, redo=True), True, False),  # without this site
    ],
)
def test_which_training_is_cut_short_when_a_round_is_done_again(told, again, cut, kept):
    standing = begin(1, 0, ME, 2, first=3)
    told.tell(standing)
    told.orders.next_generation()
    assert told.orders.train(4, standing)
    told.tell(again)
    assert told.orders.cut.is_set() == cut
    assert told.orders.trained(standing) == kept
    assert not told.orders.train(5, standing)  # that would be for nothing
    assert told.orders.train(again.first_round, again)
    assert not told.orders.cut.is_set()
    assert told.orders.trained(again)


@pytest.mark.parametrize("end", [Hurry(), STOP, None])
def test_the_end_cuts_training_short_once_and_for_all(told, end):
    standing = begin(1, 0, ME)
    told.tell(standing)
    told.orders.next_generation()
    told.orders.train(1, standing)
    told.tell(end)
    assert told.orders.cut.is_set()
    assert told.orders.trained(standing)  # what was done until then counts
    assert told.orders.train(2, standing)
    assert told.orders.cut.is_set()


def test_limits_are_those_of_the_newest_entry_that_is_read(told):
    first = begin(1, 0, 1, limit_s=9.0)
    told.tell(first, commit(1, limit_s=5.0), commit(2))
    assert told.orders.limit_s is None
    told.orders.next_generation()
    assert told.orders.limit_s == 9.0
    told.awaits(1, first)
    assert told.orders.limit_s == 5.0
    told.awaits(2, first)
    assert told.orders.limit_s == 5.0


def test_probes_are_read_in_their_turn(told):
    probe = Probe(endpoints=(None, None))
    told.tell(probe, begin(1, 0, 1))
    assert told.of("probe") == []
    told.orders.next_generation()
    assert told.of("probe") == [(probe,)]


def test_who_waits_can_be_made_to_look_up(told):
    first = begin(1, 0, 1, rounds=2)
    told.tell(first)
    told.orders.next_generation()
    told.orders.look_up()
    with pytest.raises(Nothing):
        told.awaits(1, first)
    told.away = True
    assert told.awaits(1, first)
