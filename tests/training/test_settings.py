"""Settings: what they accept, what they refuse, and that they stay light."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import ValidationError

from powertrip.training.settings import (
    IdxSettings,
    OuterSettings,
    PartitionSettings,
    TaskSettings,
    TrainingSettings,
)


def test_the_settings_do_not_import_torch() -> None:
    code = "import sys, powertrip.training.settings; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_plain_string_stands_for_a_section() -> None:
    assert TaskSettings.model_validate("my_package.my_module:MyTask").name.endswith("MyTask")
    assert PartitionSettings.model_validate("shards").kind == "shards"
    assert OuterSettings.model_validate("fedavg").kind == "fedavg"


@pytest.mark.parametrize("name", ["cifar", "my_module.MyTask", "my module:Task", ":Task", "a:b:c"])
def test_a_task_name_that_is_none_is_refused_with_the_right_form(name: str) -> None:
    with pytest.raises(ValidationError, match=r"package\.module:Class"):
        TaskSettings(name=name)


def test_options_are_for_own_tasks() -> None:
    assert TaskSettings(name="a.b:C", options={"x": 1}).options == {"x": 1}
    with pytest.raises(ValidationError, match="image files are set under `idx`"):
        TaskSettings(name="idx", options={"dataset": "mnist"})


def test_epochs_given_alone_replace_the_default_steps() -> None:
    assert TrainingSettings(local_epochs=2).steps_per_round(100) == 7
    assert TrainingSettings(local_epochs=0.01).steps_per_round(100) == 1
    assert TrainingSettings(local_steps=9).steps_per_round(100) == 9


def test_steps_and_epochs_together_or_neither_are_refused() -> None:
    with pytest.raises(ValidationError, match="write null for the other"):
        TrainingSettings(local_steps=3, local_epochs=1)
    with pytest.raises(ValidationError, match="set local_steps or local_epochs"):
        TrainingSettings(local_steps=None)


def test_resolved_settings_can_be_read_again() -> None:
    for settings in (TrainingSettings(), TrainingSettings(local_epochs=1), TaskSettings()):
        assert type(settings).model_validate(settings.model_dump(mode="json")) == settings


def test_the_outer_rate_follows_the_kind() -> None:
    assert OuterSettings(kind="fedavg").learning_rate == 1.0
    assert OuterSettings(kind="nesterov").learning_rate == 0.7
    assert OuterSettings(kind="nesterov", lr=0.5).learning_rate == 0.5


def test_idx_settings_that_contradict_each_other() -> None:
    with pytest.raises(ValidationError, match="unknown dataset 'cifar'"):
        IdxSettings(dataset="cifar")
    with pytest.raises(ValidationError, match="needs `train`"):
        IdxSettings(dataset="custom")
    with pytest.raises(ValidationError, match="train and transposed can be set only with"):
        IdxSettings(dataset="mnist", train="x", transposed=True)
    with pytest.raises(ValidationError, match="leave something to train on"):
        IdxSettings(validation_share=0.5, test_share=0.5)
