"""What makes a simulation's start quicker; imports nothing that would take time itself."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """Make imports without looking for garbage among what they make, which all stays.

    Torch's import takes a fifth less time so.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
