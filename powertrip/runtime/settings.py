"""Settings of a run: what it strives for, and how its processes treat each other."""

from __future__ import annotations

import ipaddress
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from netem.errors import NetemError
from netem.plan import DEFAULT_SUBNET, parse_change
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

    def is_spent(self, rounds: int, time_s: float) -> bool:
        """Whether so many rounds and seconds of the training clock are all that a run may have."""
        return rounds >= self.max_rounds or (self.max_s is not None and time_s >= self.max_s)

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
    shortest_limit_s: float = Field(default=2.0, gt=0)
    """Least seconds beyond its usual time that a round may take before those who wait for a site go
    on without it; the limit follows the rounds before, up to exchange.timeout_s."""
    stop_grace_s: float = Field(default=10.0, gt=0)
    """Seconds that a stopping run gives its sites to finish the round and save the model."""
    secret_file: str | None = None
    """File with the secret that all processes of the job share, at least 16 bytes that nobody else
    may read (chmod 600); null takes the environment variable POWERTRIP_SECRET, and without that
    there is none: then anyone who reaches the ports can join (docs/security.md)."""


class CheckpointSettings(Settings):
    """When the state of a run is saved beside its training, to go on from (`--resume`)."""

    every_s: float | None = Field(default=60.0, gt=0)
    """Seconds between two checkpoints; null makes none by time. The end of a run makes one in any
    case."""
    every_rounds: int | None = Field(default=None, ge=1)
    """Rounds between two checkpoints; null makes none by rounds."""
    keep: int = Field(default=3, ge=1)
    """How many of them are kept: an older one is removed when another is whole."""

    def is_due(self, rounds: int, seconds: float) -> bool:
        """Whether so many rounds and seconds since the last one, or the start, ask for another."""
        by_time = self.every_s is not None and seconds >= self.every_s
        by_rounds = self.every_rounds is not None and rounds >= self.every_rounds
        return rounds > 0 and (by_time or by_rounds)


class EmulationSettings(Settings):
    """Links between the sites that are like the network's, each site in a namespace of its own."""

    backend: Literal["auto", "kernel", "userspace", "off"] = "auto"
    """auto takes kernel (root, sch_netem), else userspace (/dev/net/tun), else none; off leaves the
    network as it is, and so does auto where the processes are on several machines without nodes."""
    jitter_s: float = Field(default=0.0, ge=0, le=10)
    """Deviation of every link's delay in seconds, as far as the delay itself is that large."""
    loss: float = Field(default=0.0, ge=0, le=1)
    """Share of the packets that every link loses."""
    schedule: tuple[dict[str, Any], ...] = ()
    """Changes of links after the start of the training, each such as
    {at_s: 60, src: iowa, dst: all, rate_bps: 2e7} or {at_s: 90, src: iowa, dst: tokyo, up: false};
    rates are what is emulated, whatever network.bandwidth_scale is."""
    subnet: str = DEFAULT_SUBNET
    """IPv4 range of the sites' addresses, which are seen by nobody but them."""
    nodes: tuple[str, ...] = ()
    """IPv4 addresses of the machines, in the order of their ranks, when the emulated sites are on
    several: their bridges are joined by VXLAN (backend kernel)."""

    @field_validator("schedule")
    @classmethod
    def _changes(cls, value: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
        for number, change in enumerate(value):
            try:
                parse_change(change, f"change {number}")
            except NetemError as error:
                raise ValueError(str(error)) from error
        return value

    @field_validator("nodes")
    @classmethod
    def _addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for node in value:
            try:
                ipaddress.IPv4Address(node)
            except ValueError:
                raise ValueError(f"{node!r} is no IPv4 address such as 10.0.0.1") from None
        if len(set(value)) < len(value):
            raise ValueError("names a machine twice")
        return value
