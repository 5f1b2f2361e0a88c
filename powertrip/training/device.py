"""Ready torch in a process: the device and the number of threads."""

from __future__ import annotations

import torch

from powertrip.training.errors import DeviceError
from powertrip.training.settings import TrainingSettings


def prepare_torch(settings: TrainingSettings, *, local_rank: int = 0) -> torch.device:
    """Set the threads of this process and choose its device.

    Parameters
    ----------
    settings
        Device and threads.
    local_rank
        Number of this process on its machine: processes take the machine's GPUs in turn.

    Raises
    ------
    DeviceError
        If cuda is asked for and torch sees none.
    """
    torch.set_num_threads(settings.threads)
    available = torch.cuda.is_available()
    if settings.device == "cuda" and not available:
        raise DeviceError(
            "training.device is cuda, but torch sees no GPU here; write cpu or auto, or install "
            "a CUDA build of torch"
        )
    if settings.device == "cpu" or not available:
        return torch.device("cpu")
    return torch.device("cuda", local_rank % torch.cuda.device_count())
