"""Errors that say several things at once, and that cross process borders."""

import pickle

from netem.errors import DaemonLost, NetemError, PlanError


def test_a_plan_error_lists_its_problems():
    assert str(PlanError(["a: is wrong"], "x.yaml")) == "1 problem in x.yaml:\n  a: is wrong"
    assert str(PlanError(["a", "b"])) == "2 problems in the plan:\n  a\n  b"


def test_a_plan_error_can_be_pickled():
    again = pickle.loads(pickle.dumps(PlanError(["a", "b"], "x.yaml")))
    assert (again.problems, again.source) == (("a", "b"), "x.yaml")


def test_exit_codes():
    assert PlanError([]).exit_code == 2
    assert DaemonLost("").exit_code == NetemError.exit_code == 1
