"""PyTorch's Gloo between processes that have entered shaped links; run by test_kernel_uml.py.

The sites are forked, since importing torch takes most of the time there.
"""

import multiprocessing
import os
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from netem.client import INTERFACE, Control, enter
from netem.launch import start_daemon
from netem.plan import Plan

DATA_BYTES = 4 << 20
DELAY_S = 0.01
RATE_BPS = 100e6
REPETITIONS = 4
TIMEOUT = timedelta(seconds=40)
FORK = multiprocessing.get_context("fork")


def site(daemon: Path, number: int, plan: Plan, store: Path, result: Connection) -> None:
    """Enter, reduce several times, and send the begin and the end of each."""
    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
    torch.set_num_threads(1)
    membership = enter(daemon, number, "kernel", plan)
    count = len(plan.sites)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(str(store), count),
        rank=number,
        world_size=count,
        timeout=TIMEOUT,
    )
    data = torch.ones(DATA_BYTES // 4)
    times_s = []
    for _ in range(REPETITIONS):
        begin_s = time.monotonic()
        dist.all_reduce(data)
        times_s.append((begin_s, time.monotonic()))
    assert torch.equal(data, torch.full_like(data, count**REPETITIONS))
    result.send(times_s)
    dist.destroy_process_group()
    membership.close()


@pytest.mark.parametrize("count", [2, 4])
def test_an_all_reduce_takes_the_time_and_the_bytes_of_a_ring(count: int, tmp_path: Path) -> None:
    plan = Plan.parse(
        {
            "sites": [f"s{number}" for number in range(count)],
            "default": {"delay_s": DELAY_S, "rate_bps": RATE_BPS},
        }
    )
    times_s = []
    with start_daemon(plan, "kernel") as daemon, Control(daemon.socket_path) as control:
        started = []
        for number in range(count):
            ours, theirs = FORK.Pipe(duplex=False)
            arguments = (daemon.socket_path, number, plan, tmp_path / "store", theirs)
            started.append((FORK.Process(target=site, args=arguments, daemon=True), ours))
            started[-1][0].start()
            theirs.close()
        for process, result in started:
            assert result.poll(TIMEOUT.seconds), "a site does not answer"
            times_s.append(result.recv())
            process.join(TIMEOUT.seconds)
            assert process.exitcode == 0
        stats = control.stats()
    took_s = [
        max(end_s for _, end_s in each) - min(begin_s for begin_s, _ in each)
        for each in zip(*times_s, strict=True)
    ]
    model_s = 2 * (count - 1) * (DELAY_S + DATA_BYTES / count * 8 / RATE_BPS)
    ring_bytes = REPETITIONS * 2 * (count - 1) / count * DATA_BYTES
    shares = [
        sum(sent.bytes for (src, _), sent in stats.items() if src == number) / ring_bytes
        for number in range(count)
    ]
    shown = ", ".join(f"{each_s:.3f}" for each_s in took_s)
    print(f"{count} sites: {shown} s, by the model {model_s:.3f} s; shares of its bytes: {shares}")
    # The first opens the windows, and a busy machine only adds: the least counts.
    assert min(took_s) >= 0.97 * model_s
    assert min(took_s[1:]) <= 2 * model_s
    assert all(1.0 <= share <= 1.08 for share in shares)
