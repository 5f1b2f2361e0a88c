from __future__ import annotations

import os

import pytest

from powertrip.experiments import backends
from powertrip.experiments.backends import (
    BackendError,
    WorkerDied,
    known_backend,
    unordered,
)
from powertrip.simulation.threads import THREADS


@pytest.mark.parametrize("workers", [1, 2])
def test_all_calls_are_made(tmp_path, workers):
    calls = ((n, 1) for n in range(5))
    with unordered(calls, divmod, workers, "processes", tmp_path) as results:
        assert sorted(results) == [(n, 0) for n in range(5)]


def test_a_worker_has_one_thread(tmp_path):
    with unordered([(name,) for name in THREADS], os.getenv, 2, "processes", tmp_path) as results:
        assert set(results) == {"1"}


def test_a_worker_that_is_killed_ends_it_with_a_word(tmp_path):
    with (
        pytest.raises(WorkerDied, match="fewer --workers"),
        unordered([(3,), (3,)], os._exit, 2, "processes", tmp_path) as results,
    ):
        list(results)


def test_an_error_of_a_call_is_raised_here(tmp_path):
    for workers in (1, 2):
        with (
            pytest.raises(ZeroDivisionError),
            unordered([(1, 0), (1, 0)], divmod, workers, "processes", tmp_path) as results,
        ):
            list(results)


@pytest.mark.parametrize(("name", "package"), [("dask", "distributed"), ("ray", "ray")])
def test_a_backend_without_its_package(tmp_path, monkeypatch, name, package):
    monkeypatch.setattr(backends.importlib.util, "find_spec", lambda asked: None)
    with (
        pytest.raises(BackendError, match=f"needs the package {package}"),
        unordered([(1, 1)], divmod, 2, known_backend(name), tmp_path) as results,
    ):
        list(results)


def test_a_backend_that_there_is_not():
    assert known_backend("processes") == "processes"
    with pytest.raises(BackendError, match="--backend spark: write one of processes, dask, ray"):
        known_backend("spark")
