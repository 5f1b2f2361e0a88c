"""Fixtures that every room's tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Read when torch is imported, which test modules do: each wait on a store that ends without news
# would print a warning. Groups listen on loopback only. torch looks up the names of its peers'
# addresses, which takes 5 s where no server answers.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets, or a skip that says what is missing."""
    fallback = Path(__file__).parents[1].parent / "shared" / "data"
    folder = Path(os.environ.get("POWERTRIP_DATA") or fallback)
    if folder.is_dir():
        return folder
    message = (
        f"this test reads real data, and there is no folder {folder}; "
        "set POWERTRIP_DATA to the folder that holds emnist, mnist, fashion_mnist and the others"
    )
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)
