"""Settings of a run: what it strives for, and how its processes treat each other."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from powertrip.settings import Settings
from powertrip.telemetry.events import Target


class GoalSettings(Settings):
    """When a run ends: with its target, or with its budget."""

    accuracy: float | None = Field(default=None, gt=0, le=1)
    """Test accuracy at which the run has reached its target; null with another target or none."""
    loss: float | None = Field(default=None, gt=0)
    """Mean test loss at which the run has reached its target; null with another target or none."""
    max_rounds: int = Field(default=200, ge=1)
    """Rounds after which the run ends in any case; the target, where there is no other."""
    max_s: float | None = Field(default=None, gt=0)
    """Seconds of the training clock after which the run ends in any case; null sets no limit."""

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        if self.accuracy is not None and self.loss is not None:
            raise ValueError("write accuracy or loss as the target, and null for the other")
        return self

    @property
    def target(self) -> Target:
        """The target as the events name it; without another one, to do all the rounds."""
        if self.accuracy is not None:
            return Target(metric="test_accuracy", value=self.accuracy)
        if self.loss is not None:
            return Target(metric="test_loss", value=self.loss)
        return Target(metric="rounds", value=self.max_rounds)


class RuntimeSettings(Settings):
    """How the processes of a run behave."""

    pacing: Literal["modelled", "off"] = "modelled"
    """modelled slows local steps to what a site's power allows; off lets the hardware run."""
    evaluate_every: int = Field(default=1, ge=1)
    """Rounds between two evaluations, which the members share among them."""
    run_dir: str = "runs"
    """Folder in which every run makes one of its own."""
    rebuild_s: float = Field(default=0.3, ge=0)
    """Seconds that a new process group is assumed to cost before one has been measured."""
    start_limit_s: float = Field(default=300.0, gt=0)
    """Seconds within which every site must have reported for work."""
    silence_limit_s: float = Field(default=600.0, gt=0)
    """Seconds without a word (a site's report, the coordinator's answer) that end the run."""
    stop_grace_s: float = Field(default=10.0, gt=0)
    """Seconds that a stopping run gives its sites to finish the round and save the model."""
