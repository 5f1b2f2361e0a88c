"""What can be wrong with a task, its partition, or the training itself."""

from __future__ import annotations

from collections.abc import Collection

from powertrip.errors import InputError, PowerTripError


class TaskError(InputError):
    """The task cannot be loaded, or does not offer what a task must."""


class PartitionError(InputError):
    """The training samples cannot be spread over the sites as the settings ask."""


class DeviceError(InputError):
    """The device that the settings name does not exist."""


class OtherOptimizer(InputError):
    """What a site remembers is of another inner optimizer than the settings name."""

    def __init__(self, found: Collection[str], known: Collection[str]) -> None:
        super().__init__(
            f"the inner optimizer's state holds {', '.join(sorted(found))}, and that of "
            f"training.optimizer {', '.join(sorted(known))}: go on with the optimizer that the run "
            "began with"
        )


class TrainingDiverged(PowerTripError):
    """The training loss is no longer a number."""
