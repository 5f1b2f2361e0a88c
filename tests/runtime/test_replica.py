from __future__ import annotations

import pytest
import torch

from powertrip.runtime.replica import CommitNotHeld, Replica, Trained
from powertrip.training.local import LocalResult


class Counting:
    """An outer optimizer with a state: the sum of all mean updates."""

    def __init__(self, size: int) -> None:
        self.state = torch.zeros(size)

    def step(self, vector, mean_update) -> None:
        self.state.add_(mean_update)
        vector.sub_(self.state)


def trained(value: float) -> Trained:
    return Trained(torch.full((2,), value), 8, LocalResult(1, 8, 0.5, 0.5, 0.0), 1.0, 0.0)


@pytest.fixture
def replica():
    return Replica("rome", torch.zeros(2), Counting(2))


def step(replica, round_: int, value: float) -> None:
    replica.step(round_, torch.full((2,), value))


def state(replica) -> tuple:
    return replica.vector.tolist(), replica.outer_state.tolist(), replica.round


def test_it_goes_back_to_the_round_before_model_and_outer_state(replica):
    step(replica, 1, 1.0)
    replica.confirm(1)
    committed, digest = state(replica), replica.digest()
    step(replica, 2, 3.0)
    assert state(replica) == ([-5.0, -5.0], [4.0, 4.0], 2)
    assert replica.digest() != digest
    replica.back_to(1)
    assert state(replica) == committed == ([-1.0, -1.0], [1.0, 1.0], 1)
    assert replica.digest() == digest


def test_a_round_done_again_gives_what_it_would_have_given_at_once(replica):
    other = Replica("oslo", torch.zeros(2), Counting(2))
    for each in (replica, other):
        step(each, 1, 1.0)
        each.confirm(1)
    step(replica, 2, 7.0)
    replica.back_to(1)
    for each in (replica, other):
        step(each, 2, 2.0)
        each.confirm(2)
        step(each, 3, 5.0)
    assert replica.digest() == other.digest()
    replica.back_to(2)
    other.back_to(2)
    assert replica.digest() == other.digest()


def test_to_where_it_stands_it_can_go_back_any_time(replica):
    step(replica, 1, 1.0)
    replica.confirm(1)
    for _ in range(2):
        replica.back_to(1)
        assert replica.round == 1


def test_nobody_goes_back_behind_a_commit(replica):
    step(replica, 1, 1.0)
    replica.confirm(1)
    held = state(replica)
    with pytest.raises(CommitNotHeld, match="rome is to go on from round 0, and holds round 1"):
        replica.back_to(0)
    assert state(replica) == held


@pytest.mark.parametrize("wanted", [0, 3, 4])
def test_what_it_does_not_hold_it_cannot_go_to(replica, wanted):
    step(replica, 1, 1.0)
    replica.confirm(1)
    step(replica, 2, 1.0)
    with pytest.raises(CommitNotHeld):
        replica.back_to(wanted)


@pytest.mark.parametrize("round_", [0, 1, 3])
def test_rounds_come_one_after_the_other(replica, round_):
    step(replica, 1, 1.0)
    held = state(replica)
    with pytest.raises(CommitNotHeld):
        step(replica, round_, 1.0)
    assert state(replica) == held


def test_an_old_commit_takes_nothing_away(replica):
    step(replica, 1, 1.0)
    replica.confirm(1)
    step(replica, 2, 1.0)
    replica.confirm(1)  # said again
    replica.back_to(1)
    assert replica.round == 1


def test_own_work_is_kept_until_its_round_is_committed(replica):
    replica.keep(1, trained(1.0))
    step(replica, 1, 1.0)
    replica.keep(2, trained(2.0))
    assert replica.kept(1).update.tolist() == [1.0, 1.0]
    replica.confirm(1)
    assert replica.kept(1) is None
    assert replica.kept(2) is not None
    assert replica.kept(3) is None


def test_going_back_keeps_the_work_of_the_failed_round_alone(replica):
    step(replica, 1, 1.0)
    replica.confirm(1)
    replica.keep(2, trained(2.0))
    step(replica, 2, 1.0)
    replica.keep(3, trained(3.0))  # trained on a model that is undone
    replica.back_to(1)
    assert replica.kept(2).update.tolist() == [2.0, 2.0]
    assert replica.kept(3) is None


def test_a_newcomer_stands_where_its_donor_did(replica):
    replica.keep(1, trained(1.0))
    step(replica, 1, 1.0)
    replica.vector.fill_(9.0)
    replica.outer_state.fill_(4.0)
    replica.received(6)
    assert (replica.round, replica.kept(1)) == (6, None)
    with pytest.raises(CommitNotHeld):
        replica.back_to(5)
    step(replica, 7, 1.0)
    replica.back_to(6)
    assert state(replica) == ([9.0, 9.0], [4.0, 4.0], 6)


def test_the_digests_of_the_last_two_rounds_are_at_hand_until_the_last_is_committed(replica):
    step(replica, 1, 1.0)
    first = replica.digest()
    step(replica, 2, 1.0)
    assert replica.digest_after(2) == replica.digest() != first
    assert replica.digest_after(1) == first
    assert (replica.digest_after(0), replica.digest_after(3)) == (None, None)
    replica.confirm(2)
    assert replica.digest_after(1) is None
