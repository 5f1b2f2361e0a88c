"""How many threads the processes of an experiment use; imports nothing that would start any."""

from __future__ import annotations

import os

THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
"""Variables that libraries read their number of threads from, when they are loaded."""


def one_thread_each() -> None:
    """Let numpy and torch, where they are not loaded yet, use one thread in all processes."""
    for name in THREADS:
        os.environ[name] = "1"
