"""The commit protocol of docs/protocol.md, in every order in which things can happen."""

from __future__ import annotations

import pytest

from powertrip.coordination.attempt import Attempt
from powertrip.coordination.rounds import Rounds
from powertrip.runtime.replica import Replica
from tests.runtime.protocol_explore import Explored, explore
from tests.runtime.protocol_model import World
from tests.runtime.protocol_parts import Violation, install

ALL = ((0, 1, 2),) * 2
MOVING = ((0, 1), (1, 2), (0, 2))
HANDOVER = ((0,), (0,), (1, 2))
"""Nobody who stays holds the model."""


@pytest.fixture(autouse=True)
def _read_the_model_log(monkeypatch):
    install(monkeypatch)


@pytest.mark.parametrize(
    ("members", "faults", "least"),
    [
        (ALL, {}, 15),
        (ALL, {"losses": 1}, 2000),
        (ALL, {"crashes": 1}, 10_000),
        (MOVING, {"crashes": 1, "late_gone": True}, 2000),
        (MOVING, {"crashes": 1, "losses": 1}, 10_000),
        (MOVING, {"freezes": 1}, 2000),
        (HANDOVER, {"crashes": 1}, 1000),
        (HANDOVER, {"freezes": 1}, 2000),
        (HANDOVER, {"losses": 1}, 100),
    ],
)
def test_whatever_happens_no_promise_is_broken(members, faults, least):
    seen = explored(members, faults)
    assert seen.states >= least  # an exploration that sees little shows little
    assert seen.committed > 0


def explored(members, faults) -> Explored:
    seen = explore(World(members, **faults))
    if seen.stuck:
        raise Violation(f"I5: nothing follows {seen.stuck[0]}")
    # One fault costs the model only where a single site holds it.
    if (
        seen.lost
        and members != HANDOVER
        and sum(faults[kind] for kind in faults if kind != "late_gone") < 2
    ):
        raise Violation("I1: the model was lost with one site")
    return seen


def forgets_the_round_before(monkeypatch) -> None:
    step = Replica.step

    def forgetful(self, round_, mean_update) -> None:
        step(self, round_, mean_update)
        self._before = None

    monkeypatch.setattr(Replica, "step", forgetful)


def keeps_later_work(monkeypatch) -> None:
    back_to = Replica.back_to

    def hoarding(self, round_) -> None:
        kept = dict(self._kept)
        back_to(self, round_)
        self._kept = kept

    monkeypatch.setattr(Replica, "back_to", hoarding)


def ignores_a_member(monkeypatch) -> None:
    def hasty(self) -> bool:
        return sum(site in self._reports for site in self.left) >= max(1, len(self.left) - 1)

    monkeypatch.setattr(Attempt, "complete", property(hasty))


def counts_stale_reports(monkeypatch) -> None:
    def lax(self, mail) -> bool:
        return mail.round == self.round and mail.site in self.begin.members

    monkeypatch.setattr(Attempt, "_concerns", lax)


def takes_a_new_process_for_the_old_one(monkeypatch) -> None:
    commit = Rounds.commit

    def trusting(self):
        reports = commit(self)
        self.hold(report.site for report in reports)
        return reports

    monkeypatch.setattr(Rounds, "commit", trusting)


def takes_all_members_for_holders(monkeypatch) -> None:
    commit = Rounds.commit

    def trusting(self):
        reports = commit(self)
        self.hold(self.attempt.begin.members, self._digest)
        return reports

    monkeypatch.setattr(Rounds, "commit", trusting)


def knows_no_holder_but_those_who_reported(monkeypatch) -> None:
    monkeypatch.setattr(Rounds, "fail", lambda self, broken: self.attempt.fail(broken) and None)


def does_not_wait_for_holders(monkeypatch) -> None:
    def hasty(self):
        attempt = self.attempt
        for site in self.roster.missing(attempt.round, attempt.begin.generation):
            attempt.lose(site)
        if attempt.complete:
            return "done"
        if not attempt.failed:
            return "wait"
        return "failed" if attempt.lost or not attempt.waiting else "settle"

    monkeypatch.setattr(Rounds, "verdict", hasty)


@pytest.mark.parametrize(
    ("mutation", "members", "faults"),
    [
        (forgets_the_round_before, ALL, {"losses": 1}),
        (keeps_later_work, ALL, {"losses": 1}),
        (ignores_a_member, MOVING, {"crashes": 1}),
        (counts_stale_reports, MOVING, {"losses": 1}),
        (takes_a_new_process_for_the_old_one, MOVING, {"crashes": 1}),
        (takes_all_members_for_holders, MOVING, {"crashes": 1}),
        (knows_no_holder_but_those_who_reported, HANDOVER, {"crashes": 1}),
        (does_not_wait_for_holders, HANDOVER, {"crashes": 1}),
    ],
)
def test_a_mistake_would_be_found(monkeypatch, mutation, members, faults):
    mutation(monkeypatch)
    with pytest.raises(Violation):
        explored(members, faults)
