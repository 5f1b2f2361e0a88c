"""Loading tasks by name: what works, and what is said when it does not."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import yaml
from torch import nn

from powertrip.training.errors import TaskError
from powertrip.training.evaluation import evaluate
from powertrip.training.flat import initial_model
from powertrip.training.local import LocalTrainer, Steps
from powertrip.training.partition import partition
from powertrip.training.settings import PartitionSettings, TaskSettings, TrainingSettings
from powertrip.training.task import Classification, Task, load_task, measure_of

PAGE = Path(__file__).parents[2] / "docs" / "own-task.md"

WHOLE = """
import torch
from powertrip.training.task import Classification

class Tiny(Classification):
    def __init__(self, size=4, seed=None, base_dir=None):
        self.seed, self.base_dir = seed, base_dir
        self.train, self.validation, self.test = (
            (torch.zeros(size, 2), torch.zeros(size, dtype=torch.long)) for _ in range(3))

    def build_model(self):
        return torch.nn.Linear(2, 2)

class Bare:
    train = validation = test = (torch.zeros(2, 1), torch.zeros(2))

    def build_model(self):
        return torch.nn.Linear(1, 1)

class Unequal(Tiny):
    def __init__(self):
        super().__init__()
        self.test = (torch.zeros(3, 2), torch.zeros(4))

class Peeking(Tiny):
    def __init__(self):
        super().__init__()
        self.test = self.train

class Broken(Tiny):
    def __init__(self):
        raise FileNotFoundError("no words.txt")

number = 3
"""


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Load a task from modules that lie in a folder of their own."""
    import sys

    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    (tmp_path / "outside_task.py").write_text(WHOLE)
    (tmp_path / "needs_more.py").write_text("import a_package_that_is_nowhere\n")
    (tmp_path / "misspelt.py").write_text("x = 1\ny = undefined_name\n")

    def load(name: str, **options: Any) -> Task:
        settings = TaskSettings(name=name, options=options)
        return load_task(settings, data_dir=None, base_dir=tmp_path, seed=5)

    yield load
    for name in set(sys.modules) - before:
        if name in {"outside_task", "needs_more", "misspelt", "my_task"}:
            del sys.modules[name]


def test_a_task_from_outside_the_project(load: Callable[..., Any], tmp_path: Path) -> None:
    task = load("outside_task:Tiny", size=6)
    assert len(task.train[0]) == 6
    assert (task.seed, task.base_dir) == (5, tmp_path)
    assert load("outside_task:Tiny", seed=9).seed == 9


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("absent_module:Task", r"there is no module 'absent_module'\. Put it beside"),
        ("absent.module:Task", r"there is no module 'absent'"),
        ("outside_task:Tinny", r"has no class 'Tinny'; did you mean 'Tiny'\?"),
        ("outside_task:number", r"'number' is a int, not a class"),
        ("outside_task:Bare", r"lacks loss\(\), correct\(\)\. A task has the splits train"),
        ("outside_task:Unequal", r"test pairs inputs of shape \(3, 2\) with targets of shape \(4,"),
        ("outside_task:Peeking", r"test is the training split itself"),
        ("outside_task:Broken", r"cannot be constructed: FileNotFoundError: no words.txt .*line"),
        (
            "needs_more:Task",
            r"its module needs 'a_package_that_is_nowhere', which is not installed",
        ),
        ("misspelt:Task", r"does not import: NameError: .*misspelt.py, line 2"),
    ],
)
def test_a_task_that_cannot_be_used(load: Callable[..., Any], name: str, said: str) -> None:
    with pytest.raises(TaskError, match=said) as caught:
        load(name)
    assert name in str(caught.value)


def test_a_name_without_colon_is_refused_even_past_the_settings(tmp_path: Path) -> None:
    settings = TaskSettings().model_copy(update={"name": "outside_task.Tiny"})
    with pytest.raises(TaskError, match="with a colon before the class"):
        load_task(settings, data_dir=None, base_dir=tmp_path, seed=0)


def test_options_that_the_constructor_does_not_take(load: Callable[..., Any]) -> None:
    with pytest.raises(TaskError, match=r"unexpected keyword argument 'colour'; .*takes \(size=4"):
        load("outside_task:Tiny", colour="red")


def test_classification_counts_whole_samples_and_shares_of_sequences() -> None:
    base = Classification()
    logits = torch.tensor([[0.0, 1.0], [2.0, 1.0], [0.0, 3.0]])
    assert float(base.correct(logits, torch.tensor([1, 1, 1]))) == 2.0
    sequences = torch.zeros(2, 3, 4)
    sequences[:, 2] = 1.0
    targets = torch.tensor([[2, 2, 2, 0], [2, 0, 0, 0]])
    assert float(base.correct(sequences, targets)) == 1.0
    assert base.loss(logits, torch.tensor([1, 0, 1])).dim() == 0


def test_classification_has_the_losses_of_single_samples() -> None:
    base = Classification()
    logits = torch.tensor([[0.0, 0.0], [0.0, math.log(3.0)]])
    each = base.losses(logits, torch.tensor([0, 0]))
    assert each.tolist() == pytest.approx([math.log(2), math.log(4)])
    # Two targets a sample, with equal logits for both of a sample's.
    sequences = logits.unsqueeze(2).repeat(1, 1, 2)
    each = base.losses(sequences, torch.tensor([[0, 1], [0, 1]]))
    mixed = (math.log(4) + math.log(4 / 3)) / 2
    assert each.tolist() == pytest.approx([math.log(2), mixed])
    assert float(base.loss(sequences, torch.tensor([[0, 1], [0, 1]]))) == pytest.approx(
        (math.log(2) + mixed) / 2
    )


def test_a_loss_of_ones_own_has_no_losses_by_cross_entropy() -> None:
    class Squared(Classification):
        def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return (outputs - targets).square().mean()

    class Both(Squared):
        def losses(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return (outputs - targets).square()

    assert Squared().losses is None
    assert Both().losses(torch.ones(1), torch.zeros(1)).tolist() == [1]
    assert Classification().losses is not None


@pytest.mark.parametrize("shape", [(8, 5), (8, 5, 3)])
def test_loss_and_losses_measured_together_are_those_of_the_task(shape: tuple[int, ...]) -> None:
    """The shortcut for plain cross entropy changes no bit, in the loss, the losses or the slope."""
    task = cast(Task, Classification())
    outputs = torch.randn(shape, requires_grad=True)
    targets = torch.randint(0, 5, (8, *shape[2:]))
    loss, losses = measure_of(task)(outputs, targets)
    (slope,) = torch.autograd.grad(loss, outputs)
    expected = nn.functional.cross_entropy(outputs, targets)
    assert torch.equal(loss, expected)
    assert losses is not None
    assert not losses.requires_grad
    assert torch.equal(losses, Classification().losses(outputs, targets))
    assert torch.equal(slope, torch.autograd.grad(expected, outputs)[0])


def test_methods_of_ones_own_are_measured() -> None:
    class Doubled(Classification):
        def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return 2 * super().loss(outputs, targets)

    class DoubledLosses(Classification):
        def losses(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return 2 * super().losses(outputs, targets)

    outputs, targets = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    plain, each = measure_of(cast(Task, Classification()))(outputs, targets)
    assert each is not None
    doubled, none = measure_of(cast(Task, Doubled()))(outputs, targets)
    assert torch.equal(doubled, 2 * plain)
    assert none is None
    loss, twice = measure_of(cast(Task, DoubledLosses()))(outputs, targets)
    assert torch.equal(loss, plain)
    assert twice is not None
    assert torch.equal(twice, 2 * each)


def test_the_page_on_own_tasks_works_as_printed(load: Callable[..., Any], tmp_path: Path) -> None:
    code, scenario = (
        re.search(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
        for language in ("python", "yaml")
    )
    assert code is not None
    assert scenario is not None
    assert len(code[1].splitlines()) < 60
    (tmp_path / "my_task.py").write_text(code[1])
    settings = TaskSettings.model_validate(yaml.safe_load(scenario[1])["task"])
    task = load_task(settings, data_dir=None, base_dir=tmp_path, seed=0)
    model = initial_model(task, seed=0)
    local = TrainingSettings(optimizer="adamw", lr=0.01, batch_size=64)
    (indices,) = partition(PartitionSettings(kind="dirichlet"), task, 1, seed=0)
    LocalTrainer(task, indices, local, seed=0, site=0, model=model).train(0, Steps(300))
    assert evaluate(task, model, "test").accuracy > 0.95
