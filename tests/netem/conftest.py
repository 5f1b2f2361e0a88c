"""Tests that make namespaces and measure real links run by `make test-links`."""

from pathlib import Path

import pytest

ON_REAL_LINKS = {
    "test_check.py",
    "test_cleanup.py",
    "test_cli.py",
    "test_client.py",
    "test_daemon.py",
    "test_hub.py",
    "test_kernel.py",
    "test_kernel_uml.py",
    "test_launch.py",
    "test_namespaces.py",
    "test_probes.py",
    "test_runner.py",
    "test_server.py",
    "test_tun.py",
    "test_userspace.py",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and item.path.name in ON_REAL_LINKS:
            item.add_marker(pytest.mark.links)
