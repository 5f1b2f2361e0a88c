"""What can be wrong with a task, its partition, or the training itself."""

from __future__ import annotations

from powertrip.errors import InputError, PowerTripError


class TaskError(InputError):
    """The task cannot be loaded, or does not offer what a task must."""


class PartitionError(InputError):
    """The training samples cannot be spread over the sites as the settings ask."""


class DeviceError(InputError):
    """The device that the settings name does not exist."""


class TrainingDiverged(PowerTripError):
    """The training loss is no longer a number."""
