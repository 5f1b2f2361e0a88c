"""torchrun's agent for a run on this machine, started from Python: same processes, and exit codes.

torchrun itself ends with 1 whatever its processes end with, and with a traceback; here the first
failure's exit code is the job's.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

from powertrip.config import default_path
from powertrip.errors import PowerTripError
from powertrip.runtime.resuming import resolve
from powertrip.runtime.secret import load_secret


def launch(
    path: Path | None,
    overrides: Sequence[str],
    *,
    json_summary: bool = False,
    resume: Path | None = None,
) -> int:
    """Run the job with one process a site on this machine.

    Parameters
    ----------
    path, overrides
        The scenario, as `powertrip.config.load_config` takes them.
    json_summary
        End standard output with the summary as one line of JSON.
    resume
        Folder of a run that goes on from its last checkpoint, in place of a scenario.

    Returns
    -------
    int
        0, or the exit code of the run.
    """
    try:
        setup = resolve(path, overrides, json_summary=json_summary, resume=resume)
        setup.check_real()
        load_secret(setup.config, setup.base_dir)
        setup.build_world()
    except PowerTripError as error:
        print(f"powertrip: {error}", file=sys.stderr, flush=True)  # noqa: T201
        return error.exit_code

    from torch.distributed import TCPStore
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    scenario = ["--config", str(path or default_path())]
    arguments = [*(scenario if resume is None else ["--resume", str(resume)]), *overrides]
    if json_summary:
        arguments.append("--json")
    listener = socket.create_server(("127.0.0.1", 0))
    port: int = listener.getsockname()[1]
    # torch's rendezvous takes the store that this process serves at that port already.
    store = TCPStore(
        "127.0.0.1",
        port,
        is_master=True,
        wait_for_workers=False,
        multi_tenant=True,
        master_listen_fd=listener.detach(),
    )
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=len(setup.config.sites.selected),
        run_id=uuid.uuid4().hex,
        # The other backends keep pickles in a store that listens on all addresses.
        rdzv_backend="static",
        rdzv_endpoint=f"127.0.0.1:{port}",
        rdzv_configs={"rank": 0},
        max_restarts=0,
        # Without it every run would leave an empty folder among the temporary files.
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
    )
    start = elastic_launch(config, sys.executable)
    try:
        start("-m", "powertrip.train", *arguments)
    except ChildFailedError as error:
        _, failure = error.get_first_failure()
        return failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode
    except SignalException as error:
        return 128 + int(error.sigval)
    finally:
        del store
    return 0
