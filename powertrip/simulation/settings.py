"""Settings of a simulated run; a real one does not read them."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from powertrip.settings import Settings


class TimingSettings(Settings):
    """How a real run's times differ from the model's; `powertrip calibrate` fits them to one.

    The defaults are what eight sites on one machine, joined by emulated links, have shown.
    """

    speed: float = Field(default=1.0, gt=0, le=100)
    """The sites' speed over that of their power."""
    exchange: float = Field(default=1.0, gt=0, le=100)
    """An exchange's length over the model's."""
    exchange_s: float = Field(default=0.0, ge=0)
    """Seconds of an exchange that the model lacks: starting it, copying, adding up."""
    round_s: float = Field(default=0.0, ge=0)
    """Seconds of every round that are neither training nor exchange."""
    commit_round_trips: float = Field(default=2.0, ge=0)
    """Round trips to the hub after which a site has read that the round before is committed; until
    then it trains on, but begins no exchange."""
    build_round_trips: float = Field(default=8.0, ge=0)
    """Round trips between the farthest members that a process group takes to be built, while the
    round before it is trained."""


class NoiseSettings(Settings):
    """Seeded chance in the times of a round, the same under every policy."""

    speed: float = Field(default=0.0, ge=0, le=2)
    """Standard deviation of the logarithm of a site's speed, drawn anew for each round."""
    exchange: float = Field(default=0.0, ge=0, le=2)
    """The same of an exchange's length."""
    straggler_share: float = Field(default=0.0, ge=0, le=1)
    """Share of a site's rounds in which it is a straggler."""
    straggler_slowdown: float = Field(default=3.0, ge=1)
    """How many times longer a straggler's training takes."""


class DropoutSettings(Settings):
    """Seeded failures of sites: a schedule of its own for each, the same under every policy."""

    every_s: float | None = Field(default=None, gt=0)
    """Mean seconds of the run until a site that is there fails; null for never."""
    lasts_s: float = Field(default=60.0, gt=0)
    """Mean time until it is back, in seconds."""
    notice_s: float = Field(default=5.0, ge=0)
    """Seconds that a round is longer when a member fails in it: until the others have noticed and
    have repeated the exchange without it."""


class SimulationSettings(Settings):
    """How a run is simulated."""

    workers: int | None = Field(default=None, ge=0, le=1024)
    """Processes that train; null for one a processor core, 0 to train in the simulation's own."""
    training: Literal["auto", "processes", "stacked"] = "auto"
    """How members are trained: by processes, each a site at a time; stacked, all at once as one
    batch of models; auto is stacked on a GPU and processes elsewhere."""
    evaluate_samples: int | None = Field(default=1000, ge=1)
    """Samples of each split that are evaluated after a round, always the same ones; null for all.
    Of the test samples all are, where the target is near and in the last round of the budget."""
    update_bytes: int | None = Field(default=None, ge=1)
    """Bytes that an update counts as on the links, so that a small model can stand for a large
    one; null for its own size."""
    timing: TimingSettings = TimingSettings()
    """How real times differ from the model's."""
    noise: NoiseSettings = NoiseSettings()
    """Chance in the times."""
    dropouts: DropoutSettings = DropoutSettings()
    """Failures of sites."""

    @model_validator(mode="after")
    def _stacked_alone(self) -> Self:
        if self.training == "stacked" and self.workers:
            raise ValueError(
                f"training is stacked, which takes no workers; write workers: null instead of "
                f"{self.workers}, or training: processes"
            )
        return self
