"""What a task is, and how one is loaded by name."""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy.typing as npt
import torch
from torch import Tensor, nn

from powertrip.training.data import Split, source
from powertrip.training.errors import TaskError
from powertrip.training.settings import TaskSettings

_METHODS = ("build_model", "loss", "correct")
_SPLITS = ("train", "validation", "test")


class Task(Protocol):
    """A model, its data and its measure of success: what a user provides.

    Each split is a pair of tensors (inputs, targets) with one row a sample, or a map-style torch
    Dataset of such pairs. The splits must not overlap.

    Two attributes are optional, both with one entry per training sample: `labels`, for the
    partitions by label (taken from the targets where these are a tensor of whole numbers), and
    `clients`, for the partition by client. So is the method ``losses(outputs, targets)``, which
    gives the loss of each sample of a batch, [batch]: policies that prefer sites with high losses
    (oort, cefl, ecolearn) then see each sample's, else the batch's mean for each of them.
    """

    @property
    def train(self) -> Split:
        """Samples to learn from, spread over the sites."""
        ...

    @property
    def validation(self) -> Split:
        """Samples that measure progress during the run; the policy sees these."""
        ...

    @property
    def test(self) -> Split:
        """Samples that measure the result; the target accuracy refers to these."""
        ...

    def build_model(self) -> nn.Module:
        """Make the model, initialised by torch's global generator."""
        ...

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """Mean loss of a batch, a scalar to differentiate."""
        ...

    def correct(self, outputs: Any, targets: Any) -> Tensor | float:
        """Number of samples of a batch that are right; a sample may count in part."""
        ...


class Classification:
    """Base of a task that predicts one class a sample: logits against whole-number targets.

    A subclass sets `train`, `validation` and `test`, and defines `build_model`. One that defines a
    `loss` of its own has no `losses`, unless it defines them as well.
    """

    train: Split
    validation: Split
    test: Split
    labels: npt.ArrayLike | None = None
    clients: npt.ArrayLike | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "loss" in vars(cls) and "losses" not in vars(cls):
            cls.losses = None  # type: ignore[method-assign, assignment]

    def build_model(self) -> nn.Module:
        """Make the model, initialised by torch's global generator."""
        raise NotImplementedError(f"{type(self).__name__} must define build_model")

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy of logits (batch, classes, ...) against targets (batch, ...)."""
        return nn.functional.cross_entropy(outputs, targets)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross entropy of each sample, [batch]; of several targets a sample, the mean."""
        entropy = nn.functional.cross_entropy
        if targets.dim() == 1:
            return entropy(outputs, targets, reduction="none")
        # One by one: the logits of sequences are large, and this takes as much memory again.
        each = (
            entropy(output[None], target[None], reduction="none").mean()
            for output, target in zip(outputs, targets, strict=True)
        )
        return torch.stack(list(each))

    def correct(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Samples whose largest logit is the target; of several targets a sample, the share."""
        hits = (outputs.argmax(dim=1) == targets).to(torch.float64)
        return hits.reshape(len(targets), -1).mean(dim=1).sum()


Measure: TypeAlias = Callable[[Any, Any], tuple[Tensor, Tensor | None]]
"""From outputs and targets: the mean loss, and that of each sample, without a gradient, or None."""


def measure_of(task: Task) -> Measure:
    """The task's loss together with its losses, where it has these.

    Parameters
    ----------
    task
        Where both are those of `Classification`, they share what they have in common.
    """
    losses: Callable[[Any, Any], Tensor] | None = getattr(task, "losses", None)

    def measure(outputs: Any, targets: Any) -> tuple[Tensor, Tensor | None]:
        loss = task.loss(outputs, targets)
        if losses is None:
            return loss, None
        with torch.no_grad():
            return loss, losses(outputs, targets)

    def cross_entropies(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        if targets.dim() != 1 or outputs.dim() != 2:
            return measure(outputs, targets)
        logs = nn.functional.log_softmax(outputs, dim=1)
        each = nn.functional.nll_loss(logs.detach(), targets, reduction="none")
        return nn.functional.nll_loss(logs, targets), each

    return cross_entropies if is_cross_entropy(task) else measure


def is_cross_entropy(task: Task) -> bool:
    """Whether a task's loss and losses are those of `Classification`."""
    own = (task.loss, getattr(task, "losses", None))
    functions = [getattr(method, "__func__", None) for method in own]
    return functions == [Classification.loss, Classification.losses]


def load_task(settings: TaskSettings, *, data_dir: Path | None, base_dir: Path, seed: int) -> Task:
    """Make the task that the settings name.

    A class of the user's is constructed with the options as keyword arguments. Where its
    constructor has parameters called `data_dir`, `base_dir` or `seed` that the options leave
    open, it is given these too. Its module is looked for on Python's path, then in `base_dir`
    and the working directory, which are appended to that path.

    Parameters
    ----------
    settings
        Name and options.
    data_dir
        Folder of the real data sets; None where there is none.
    base_dir
        Folder of the configuration file: relative paths start there.
    seed
        Seed of the run.

    Raises
    ------
    TaskError
        If the task does not import, cannot be constructed, or lacks something; the message says
        what to change.
    """
    if settings.name == "digits":
        from powertrip.training.digits import Digits

        return Digits()
    if settings.name == "idx":
        from powertrip.training.idx import IdxImages

        return IdxImages(settings.idx, data_dir=data_dir, base_dir=base_dir)
    if settings.name == "curve":
        raise TaskError(
            "task curve learns nothing: it is a formula for `powertrip simulate`; for a real run "
            "write digits, idx, or your own class as package.module:Class"
        )
    given = {"data_dir": data_dir, "base_dir": base_dir, "seed": seed}
    task: Task = _construct(settings.name, _find(settings.name, base_dir), settings.options, given)
    _check(settings.name, task)
    return task


def _find(name: str, base_dir: Path) -> Callable[..., Any]:
    module_name, colon, class_name = name.partition(":")
    if not (module_name and colon and class_name):
        raise TaskError(f"task {name!r}: write package.module:Class, with a colon before the class")
    for folder in (base_dir.resolve(), Path.cwd()):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name == missing or module_name.startswith(missing + "."):
            raise TaskError(
                f"task {name!r}: there is no module {missing!r}. Put it beside the configuration "
                f"file ({base_dir}) or into the working directory ({Path.cwd()}), or install it"
            ) from error
        raise TaskError(
            f"task {name!r}: its module needs {missing!r}, which is not installed"
        ) from error
    except Exception as error:
        raise TaskError(f"task {name!r} does not import: {_described(error)}") from error
    found = getattr(module, class_name, None)
    if found is None:
        near = difflib.get_close_matches(class_name, vars(module), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise TaskError(
            f"task {name!r}: the module {module.__file__} has no class {class_name!r}{hint}"
        )
    if not callable(found):
        raise TaskError(f"task {name!r}: {class_name!r} is a {type(found).__name__}, not a class")
    return found  # type: ignore[no-any-return]


def _construct(
    name: str, factory: Callable[..., Any], options: Mapping[str, Any], given: Mapping[str, Any]
) -> Any:
    signature = inspect.signature(factory)
    offered = {
        key: value
        for key, value in given.items()
        if key in signature.parameters and key not in options
    }
    try:
        signature.bind(**options, **offered)
    except TypeError as error:
        raise TaskError(
            f"task {name!r}: {error}; its constructor takes {signature}, "
            f"and task.options gives {sorted(options) or 'nothing'}"
        ) from error
    try:
        return factory(**options, **offered)
    except TaskError:
        raise
    except Exception as error:
        raise TaskError(f"task {name!r} cannot be constructed: {_described(error)}") from error


def _check(name: str, task: Any) -> None:
    lacking = [f"{method}()" for method in _METHODS if not callable(getattr(task, method, None))]
    lacking += [split for split in _SPLITS if not hasattr(task, split)]
    if lacking:
        raise TaskError(
            f"task {name!r} lacks {', '.join(lacking)}. A task has the splits train, validation "
            "and test, and the methods build_model(), loss(outputs, targets) and "
            "correct(outputs, targets); powertrip.training.task.Classification brings the last two"
        )
    for split in _SPLITS:
        source(getattr(task, split), f"task {name!r}: {split}")
    for held_out in ("validation", "test"):
        if getattr(task, held_out) is task.train:
            raise TaskError(f"task {name!r}: {held_out} is the training split itself")


def _described(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"
