"""Settings of the learning at one site: task, partition, local training, outer step."""

from __future__ import annotations

import math
import re
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from powertrip.settings import Settings

EMNIST_SPLITS = ("byclass", "bymerge", "balanced", "letters", "digits", "mnist")
IDX_DATASETS = (
    "fashion-mnist",
    "mnist",
    "mnist-10k",
    "femnist-digits",
    *(f"emnist-{split}" for split in EMNIST_SPLITS),
    "custom",
)
BUILTIN_TASKS = ("digits", "idx", "curve")

_OWN_TASK = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


class IdxSettings(Settings):
    """Labelled images in IDX files, used when the task is `idx`."""

    dataset: str = "fashion-mnist"
    """Which images: fashion-mnist, mnist, mnist-10k, femnist-digits, emnist-<byclass, bymerge,
    balanced, letters, digits or mnist>, or custom."""
    folder: str | None = None
    """Folder of the files; null means the dataset's own sub-folder of the data folder."""
    train: str | None = None
    """For custom: first part of the training files' names, before `-images-idx3-ubyte`."""
    test: str | None = None
    """For custom: the same of the test files; null sets a part of the training files aside."""
    transposed: bool = False
    """For custom: whether rows and columns are swapped in the files, as EMNIST's are."""
    validation_share: float = Field(default=0.1, gt=0, lt=1)
    """Share of the training files' samples that is set aside for validation."""
    test_share: float = Field(default=0.2, gt=0, lt=1)
    """Share of all samples that is set aside for testing where there are no test files."""
    train_samples: int | None = Field(default=None, ge=1)
    """Use only this many of the training samples; null means all."""
    test_samples: int | None = Field(default=None, ge=1)
    """Use only this many of the test samples; null means all."""
    model: Literal["small", "cnn", "mlp"] = "small"
    """What learns them: small, with 20,746 parameters for 28 x 28 pixels and ten classes; cnn, with
    105,866 and a step that takes more than twice as long on a CPU; or mlp, with 25,450 and a step
    that takes a seventh, for grids of many runs."""

    @field_validator("dataset")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in IDX_DATASETS:
            raise ValueError(f"unknown dataset {value!r}; write one of {', '.join(IDX_DATASETS)}")
        return value

    @model_validator(mode="after")
    def _names_for_custom_only(self) -> IdxSettings:
        if self.dataset == "custom":
            if self.train is None:
                raise ValueError(
                    "dataset custom needs `train`, the first part of the file names; for "
                    "`mine-images-idx3-ubyte` and `mine-labels-idx1-ubyte` write train: mine"
                )
        else:
            given = [name for name in ("train", "test") if getattr(self, name) is not None]
            if self.transposed:
                given.append("transposed")
            if given:
                raise ValueError(
                    f"{' and '.join(given)} can be set only with dataset: custom; "
                    f"the file names of {self.dataset} are known"
                )
        if self.validation_share + self.test_share >= 1:
            raise ValueError("validation_share and test_share must leave something to train on")
        return self


class CurveSettings(Settings):
    """A learning curve in the place of a model, used when the task is `curve`, in simulations only.

    A round of k members that do H steps each brings ``k/(k+kappa) * mean(H/(1+H/h0))``; accuracy
    and loss approach their ends exponentially in the sum of that.
    """

    kappa: float = Field(default=10.0, gt=0)
    """Number of members with which a round brings half of what it could at most."""
    h0: float = Field(default=10.0, gt=0)
    """Local steps after which another step is worth half."""
    scale: float = Field(default=100.0, gt=0)
    """Progress, in steps, in which the distance to the end falls to 1/e."""
    classes: int = Field(default=10, ge=2)
    """Accuracy begins at 1/classes, and the loss at log(classes)."""
    best: float = Field(default=1.0, gt=0, le=1)
    """Accuracy that is approached."""
    samples: int = Field(default=500, ge=1)
    """Training samples of each site."""
    parameters: int = Field(default=100_000, ge=1)
    """Parameters of the model that is stood for, of 4 bytes each."""


class TaskSettings(Settings):
    """What is learned; a plain string stands for its name."""

    name: str = "digits"
    """The task: digits, idx, your own class as `package.module:Class`, or curve (no model at all,
    for simulations of thousands of sites)."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the constructor of your own class."""
    idx: IdxSettings = IdxSettings()
    """The image files, when the task is idx."""
    curve: CurveSettings = CurveSettings()
    """The curve, when the task is curve."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @field_validator("name")
    @classmethod
    def _task_name(cls, value: str) -> str:
        if value not in BUILTIN_TASKS and not _OWN_TASK.fullmatch(value):
            raise ValueError(
                f"{value!r} is not a task; write digits, idx, curve, or your own class as "
                "package.module:Class (with a colon before the class)"
            )
        return value

    @model_validator(mode="after")
    def _options_for_own_task_only(self) -> TaskSettings:
        if self.options and self.name in BUILTIN_TASKS:
            hint = "; image files are set under `idx`" if self.name == "idx" else ""
            hint = "; the curve is set under `curve`" if self.name == "curve" else hint
            raise ValueError(f"the task {self.name} takes no options{hint}")
        return self


class PartitionSettings(Settings):
    """How the training samples are spread over the sites; a plain string stands for the kind."""

    kind: Literal["iid", "dirichlet", "client", "shards", "shared"] = "iid"
    """Way of spreading: iid, dirichlet, client, shards, or shared (every site draws from all)."""
    alpha: float = Field(default=0.5, gt=0)
    """For dirichlet: concentration; the smaller, the fewer classes a site holds."""
    shards_per_site: int = Field(default=2, ge=1)
    """For shards: runs of like-labelled samples that a site receives."""

    @model_validator(mode="before")
    @classmethod
    def _from_kind(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value


class TrainingSettings(Settings):
    """The local training of a site between two exchanges."""

    batch_size: int = Field(default=32, ge=1)
    """Samples per local step."""
    local_steps: int | None = Field(default=16, ge=1)
    """Local steps of a site in a round; null when local_epochs is set."""
    local_epochs: float | None = Field(default=None, gt=0)
    """Passes of a site over its own samples in a round; null when local_steps is set."""
    optimizer: Literal["sgd", "adamw"] = "sgd"
    """Inner optimizer: sgd or adamw."""
    lr: float = Field(default=0.1, gt=0)
    """Learning rate of the inner optimizer."""
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """Momentum of sgd; for adamw the betas are 0.9 and 0.999 whatever is written here."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Weight decay of the inner optimizer."""
    keep_inner_state: bool = True
    """Whether the inner optimizer keeps its momentum from round to round."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train: cpu, cuda, or auto (cuda where there is one)."""
    threads: int = Field(default=1, ge=1)
    """Processor threads of a site's process."""

    @model_validator(mode="before")
    @classmethod
    def _epochs_replace_the_default_steps(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("local_epochs") is not None:
            return {"local_steps": None, **value}
        return value

    @model_validator(mode="after")
    def _steps_or_epochs(self) -> TrainingSettings:
        if self.local_steps is not None and self.local_epochs is not None:
            raise ValueError(
                f"local_steps is {self.local_steps} and local_epochs is {self.local_epochs}; "
                "set one of them and write null for the other"
            )
        if self.local_steps is None and self.local_epochs is None:
            raise ValueError("set local_steps or local_epochs")
        return self

    def steps_per_round(self, samples: int) -> int:
        """Local steps of a site in a round.

        Parameters
        ----------
        samples
            Training samples that the site holds.
        """
        if self.local_steps is not None:
            return self.local_steps
        assert self.local_epochs is not None
        return max(1, math.ceil(self.local_epochs * samples / self.batch_size))


class OuterSettings(Settings):
    """The step that all members take with the mean of their updates; a string is the kind."""

    kind: Literal["fedavg", "nesterov"] = "nesterov"
    """Outer optimizer: fedavg (take the mean) or nesterov (DiLoCo's server momentum)."""
    lr: float | None = Field(default=None, gt=0)
    """Outer learning rate; null means 1.0 for fedavg and 0.7 for nesterov."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """For nesterov: momentum of the outer step."""

    @model_validator(mode="before")
    @classmethod
    def _from_kind(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value

    @property
    def learning_rate(self) -> float:
        """The outer learning rate, with the default of the kind filled in."""
        if self.lr is not None:
            return self.lr
        return 1.0 if self.kind == "fedavg" else 0.7
