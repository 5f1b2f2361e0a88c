from __future__ import annotations

import pytest
import torch.distributed as dist

from powertrip.config import load_config
from powertrip.coordination.setup import Setup
from powertrip.runtime.errors import ControlPlaneError
from powertrip.runtime.presences import RunOver, attend, declare_over


@pytest.fixture
def join(tmp_path, monkeypatch):
    """Tries to take part by what the store says."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    setup = Setup(load_config(None, ["runtime.start_limit_s=0.2"]), tmp_path)

    def join(store) -> None:
        with attend(setup, store, 0, 0, secret=b""):
            raise AssertionError("admitted")

    return join


@pytest.fixture
def store():
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.mark.parametrize(
    "told", ["", "port", "0", "65536", "-1", "1e3", "٣", "9" * 5000, "\x00\xff"]
)
def test_what_is_no_port_is_refused(join, store, told):
    store.set("presence/port", told)
    with pytest.raises(ControlPlaneError, match="does not say where the coordinator listens"):
        join(store)


def test_who_comes_late_is_told_that_the_run_is_over(join, store):
    store.set("presence/port", "1")
    declare_over(store)
    with pytest.raises(RunOver):
        join(store)


def test_nobody_says_where_the_coordinator_is(join, store):
    with pytest.raises(ControlPlaneError, match="asking for the coordinator"):
        join(store)
