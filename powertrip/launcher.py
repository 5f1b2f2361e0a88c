"""torchrun's agent for a run on this machine, started from Python: same processes, and exit codes.

torchrun itself ends with 1 whatever its processes end with, and with a traceback; here the first
failure's exit code is the job's.
"""

from __future__ import annotations

import logging
import os
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

from powertrip.config import default_path
from powertrip.coordination.setup import Setup
from powertrip.errors import PowerTripError


def launch(path: Path | None, overrides: Sequence[str], *, json_summary: bool = False) -> int:
    """Run the job with one process a site on this machine.

    Parameters
    ----------
    path, overrides
        The scenario, as `powertrip.config.load_config` takes them.
    json_summary
        End standard output with the summary as one line of JSON.

    Returns
    -------
    int
        0, or the exit code of the run.
    """
    try:
        setup = Setup.resolve(path, overrides, json_summary=json_summary)
        setup.check_real()
        setup.build_world()
    except PowerTripError as error:
        print(f"powertrip: {error}", file=sys.stderr, flush=True)  # noqa: T201
        return error.exit_code

    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    arguments = ["--config", str(path or default_path()), *overrides]
    if json_summary:
        arguments.append("--json")
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=len(setup.config.sites.selected),
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
    )
    start = elastic_launch(config, sys.executable)
    try:
        start("-m", "powertrip.train", *arguments)
    except ChildFailedError as error:
        _, failure = error.get_first_failure()
        return failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode
    except SignalException as error:
        return 128 + int(error.sigval)
    return 0
