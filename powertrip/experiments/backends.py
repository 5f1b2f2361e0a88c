"""Where the cells of an experiment run: processes of this machine, or a cluster by joblib."""

from __future__ import annotations

import importlib.util
import itertools
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args

from joblib import Parallel, delayed, effective_n_jobs, parallel_config
from joblib.externals.loky import get_reusable_executor

from powertrip.errors import InputError, PowerTripError

Backend = Literal["processes", "dask", "ray"]

_PACKAGES = {"dask": "distributed", "ray": "ray"}

LOT = 4
"""Calls a process that are waited for together with Ray, which does not hand over results one by
one: more keep processes from idling, fewer lose less when the experiment is interrupted."""

PARENT_POLL_S = 1.0
"""Seconds after which a worker notices at the latest that its parent was killed."""

T = TypeVar("T")


class BackendError(InputError):
    """A backend cannot be used here."""


class WorkerDied(PowerTripError):
    """A process that ran a cell was killed."""


def known_backend(name: str) -> Backend:
    """Check a backend's name.

    Raises
    ------
    BackendError
        There is no such backend.
    """
    for known in get_args(Backend):
        if name == known:
            return cast(Backend, known)
    raise BackendError(f"--backend {name}: write one of {', '.join(get_args(Backend))}")


@contextmanager
def unordered(
    calls: Iterable[tuple[Any, ...]],
    function: Callable[..., T],
    workers: int,
    backend: Backend,
    scratch: Path,
) -> Generator[Iterator[T]]:
    """Run a function on many arguments at once, and hand over the results as they come.

    However the block is left, no process is left behind.

    Parameters
    ----------
    calls
        The arguments of each call; read only a little ahead of what runs.
    function
        What is called; with `workers` 1 in this process.
    workers
        How many processes; a cluster has its own number.
    backend
        Processes of this machine, or a cluster: a Dask scheduler or a Ray head that the
        environment names (DASK_SCHEDULER_ADDRESS, RAY_ADDRESS), or else a new one here.
    scratch
        Folder of what the calls write; a process whose parent was killed removes it.

    Raises
    ------
    BackendError
        The backend's package is not installed.
    WorkerDied
        A process was killed, for example for want of memory.
    """
    with _configured(workers, backend, scratch):
        results = _results((delayed(function)(*arguments) for arguments in calls), backend)
        try:
            yield results
        except BrokenProcessPool as error:
            raise WorkerDied(
                "a process that ran a cell was killed, perhaps for want of memory; what is "
                "finished is kept: run the same command again, with fewer --workers"
            ) from error
        finally:
            results.close()


def _results(calls: Iterator[Any], backend: Backend) -> Generator[Any]:
    if backend != "ray":
        yield from Parallel(batch_size=1, return_as="generator_unordered")(calls)
        return
    size = LOT * effective_n_jobs()
    while lot := list(itertools.islice(calls, size)):
        yield from Parallel(batch_size=1)(lot)


@contextmanager
def _configured(workers: int, backend: Backend, scratch: Path) -> Generator[None]:
    package = _PACKAGES.get(backend)
    if package is not None and importlib.util.find_spec(package) is None:
        raise BackendError(
            f"--backend {backend} needs the package {package}: pip install '{package}'"
        )
    if backend == "dask":
        from distributed import Client

        with Client(set_as_default=True), parallel_config("dask", n_jobs=-1):
            yield
    elif backend == "ray":
        import ray
        from ray.util.joblib import register_ray

        ray.init()
        register_ray()
        try:
            with parallel_config("ray", n_jobs=-1):
                yield
        finally:
            ray.shutdown()
    elif workers == 1:
        with parallel_config("sequential"):
            yield
    else:
        try:
            with parallel_config(
                "loky",
                n_jobs=workers,
                inner_max_num_threads=1,
                initializer=_begin_worker,
                initargs=(scratch,),
            ):
                yield
        finally:
            get_reusable_executor(reuse=True).shutdown(wait=True, kill_workers=True)


def _begin_worker(scratch: Path) -> None:
    """Leave Ctrl-C, which all processes of a terminal receive, to the parent; end when it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(
        target=_end_with_parent, args=(os.getppid(), scratch), name="parent", daemon=True
    ).start()


def _end_with_parent(parent: int, scratch: Path) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_S)
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(1)
