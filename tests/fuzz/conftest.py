from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

MOST_BYTES = 3 << 30
"""What a test may take beside what the process has already."""


@pytest.fixture(autouse=True, scope="module")
def bounded_memory():
    """Whatever is read, what is made of it fits into little memory."""
    statm = Path("/proc/self/statm")
    if not statm.exists():  # not Linux
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    held = int(statm.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (held + MOST_BYTES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)
