"""Training in several processes: the same numbers as in one, and no process left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from powertrip.config import load_config
from powertrip.coordination.setup import Setup
from powertrip.simulation.errors import LearnerFailed
from powertrip.simulation.in_process import InProcess
from powertrip.simulation.learner import Learner, load_parts
from powertrip.simulation.processes import Processes
from powertrip.simulation.workers import MOST_SLOTS
from powertrip.training.errors import TaskError, TrainingDiverged

HERE = Path(__file__).parent
SITES = 8
END_LIMIT_S = 30.0
"""A second or two on an idle machine."""


def setup_with(*overrides: str) -> Setup:
    chosen = ["training.batch_size=8", "training.device=cpu", *overrides]
    return Setup(load_config(None, chosen), HERE)


def troubled(marked: int, trouble: str, *overrides: str) -> Setup:
    options = (
        f"task={{name: 'user_task:Troubled', options: {{marked: {marked}, trouble: {trouble}}}}}"
    )
    return setup_with(options, *overrides)


def processes(setup: Setup, count: int, **options: Any) -> Processes:
    task, shares = load_parts(setup)
    return Processes(setup, task, shares, count=count, **options)


def two_rounds(learner: Learner) -> tuple[Any, ...]:
    """All that a run learns from a learner: two rounds with a trial in between."""
    vector, seen = learner.initial(), []
    for round_ in (1, 2):
        work = [(site, 1 + 3 * (site == 5)) for site in (5, 2, 7, 0, 1, 3)]
        for keep in (False, True):
            total = torch.zeros_like(vector)
            for trained in learner.train(vector, round_, work, keep=keep):
                total += trained.update
                seen.append((trained.site, trained.steps, trained.samples))
                seen.append((trained.loss, trained.loss_rms, float(trained.update.norm())))
        vector = vector - total / len(work)
    whole, part = learner.evaluate(vector, "test"), learner.evaluate(vector, "validation", 50)
    return vector.tolist(), seen, whole, part, learner.norms(vector)


def is_gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for has."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True


@pytest.fixture(scope="module")
def fresh() -> Iterator[Processes]:
    with processes(setup_with(), 2, fork=False) as learner:
        yield learner


@pytest.mark.parametrize("momentum", ["training.momentum=0", "training.momentum=0.9"])
def test_the_number_of_processes_changes_nothing(momentum: str) -> None:
    setup = setup_with(momentum)
    expected = two_rounds(InProcess(*load_parts(setup), setup.config))
    for count in (1, 2, 3):
        with processes(setup, count) as learner:
            assert two_rounds(learner) == expected


def test_fresh_processes_change_nothing(fresh: Processes) -> None:
    setup = setup_with()
    assert two_rounds(fresh) == two_rounds(InProcess(*load_parts(setup), setup.config))


def test_many_members_come_in_their_order(fresh: Processes) -> None:
    """The first one takes as long as all others, more than there are slots for, together."""
    work = [(0, 200)] + [(1 + place % 7, 1) for place in range(4 * MOST_SLOTS)]
    vector = fresh.initial()
    assert [(t.site, t.steps) for t in fresh.train(vector, 9, work)] == work


def test_a_round_that_is_broken_off(fresh: Processes) -> None:
    vector, work = fresh.initial(), [(site, 2) for site in range(SITES)]
    expected = [t.update.clone() for t in fresh.train(vector, 4, work)]
    for _ in range(MOST_SLOTS + 1):
        next(iter(fresh.train(vector, 3, work)))
    assert torch.equal(torch.stack(updates(fresh, vector, 4)), torch.stack(expected))
    under_way = fresh.train(vector, 4, work)
    next(under_way)
    fresh.evaluate(vector, "test")
    with pytest.raises(RuntimeError, match="before this one was taken to its end"):
        next(under_way)


def updates(learner: Learner, vector: Tensor, round_: int) -> list[Tensor]:
    work = [(site, 2) for site in range(SITES)]
    return [t.update.clone() for t in learner.train(vector, round_, work)]


@pytest.mark.parametrize(
    ("trouble", "error", "said"),
    [
        ("raise", LearnerFailed, "with ValueError: there is no such digit; .*Traceback"),
        ("die", LearnerFailed, "was ended by SIGKILL; was there too little memory"),
        ("hang", LearnerFailed, "has done no step for 0.5 s .runtime.silence_limit_s"),
        ("diverge", TrainingDiverged, "the loss at site . is .* lower training.lr"),
    ],
)
def test_trouble_in_a_worker_ends_the_run(trouble: str, error: Any, said: str) -> None:
    limit_s = 0.5 if trouble == "hang" else 60  # the others must not be taken for it
    setup = troubled(7, trouble, f"runtime.silence_limit_s={limit_s}")
    with processes(setup, 2) as learner:
        pids = learner.pids
        work = [(site, 20) for site in range(SITES)]
        started_s = time.monotonic()
        with pytest.raises(error, match=f"(?s){said}"):
            list(learner.train(learner.initial(), 1, work))
    assert time.monotonic() - started_s < END_LIMIT_S
    assert all(is_gone(pid) for pid in pids)


def test_an_idle_worker_that_is_killed() -> None:
    with processes(setup_with(), 2) as learner:
        list(learner.train(learner.initial(), 1, [(0, 1), (1, 1)]))
        os.kill(learner.pids[1], signal.SIGKILL)
        with pytest.raises(LearnerFailed, match=f"process {learner.pids[1]}.* SIGKILL"):
            updates(learner, learner.initial(), 2)


def test_a_worker_that_cannot_load_its_task() -> None:
    task, shares = load_parts(setup_with())
    strange = setup_with("task=user_task:Nothing")
    with (
        Processes(strange, task, shares, count=1, fork=False) as learner,
        pytest.raises(TaskError, match="has no class 'Nothing'"),
    ):
        learner.evaluate(learner.initial(), "test")


OWNER = """
import sys
from pathlib import Path
from tests.simulation.test_processes import processes, setup_with
with processes(setup_with(), 2) as learner:
    print(*learner.pids, flush=True)
    while True:
        list(learner.train(learner.initial(), 1, [(site, 500) for site in range(8)]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_their_owner(number: signal.Signals) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=HERE.parents[1],
        start_new_session=True,
    )
    with owner:
        try:
            assert owner.stdout is not None
            pids = [int(pid) for pid in owner.stdout.readline().split()]
            assert len(pids) == 2
            if number == signal.SIGINT:  # Ctrl-C reaches all processes of the terminal
                os.killpg(owner.pid, number)
            else:
                owner.kill()
            _, said = owner.communicate(timeout=END_LIMIT_S)
        finally:
            owner.kill()
    deadline_s = time.monotonic() + END_LIMIT_S
    while not all(is_gone(pid) for pid in pids):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    assert said.count("Traceback") == (number == signal.SIGINT)
