"""How long a sum takes, by ring and by mesh: ``python -m benchmarks.exchange_time``.

Sites in namespaces of their own, with the userspace links between them; medians of six sums after
a first one. Nothing is asserted.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import statistics
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.netem_userspace import LIMIT_S, PORT, daemon_of, gather, told
from netem.client import INTERFACE, enter
from netem.plan import Link, Plan

CASES = (
    (2, 24_748, Link(delay_s=0.05, rate_bps=20e6)),
    (4, 24_748, Link(delay_s=0.05, rate_bps=20e6)),
    (4, 4 << 20, Link(delay_s=0.05, rate_bps=100e6)),
)
"""Number of sites, bytes of an update, link between any two."""

TRIES = 7


def be_site(pipe: Connection, socket_path: str, site: int, case: int, algorithm: str) -> None:
    """Be one member until told to end."""
    membership = enter(socket_path, site)
    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
    import torch
    import torch.distributed as dist

    from powertrip.exchange.group import Group

    torch.set_num_threads(1)
    sites, size, _ = CASES[case]
    limit, hub = timedelta(seconds=LIMIT_S), membership.plan.address(0)
    if site == 0:
        store = dist.TCPStore(hub, PORT, None, True, limit, wait_for_workers=False)
    told(pipe)
    if site != 0:
        store = dist.TCPStore(hub, PORT, None, False, limit, wait_for_workers=False)
    with Group(
        store,
        generation=1,
        members=range(sites),
        site=site,
        name=f"site {site}",
        backend="gloo",
        timeout_s=LIMIT_S,
        algorithm="mesh" if algorithm == "mesh" else "ring",
    ) as group:
        update = torch.ones(size // 4)
        total = group.sum(update)
        pipe.send(0.0)
        while (start_s := pipe.recv()) is not None:
            update.fill_(1.0)
            total.expect()
            select.select([], [], [], max(0.0, start_s - time.monotonic()))
            total.run()
            pipe.send(time.monotonic())


def sum_s(case: int, algorithm: str) -> float:
    """Median time of a sum, in seconds."""
    sites, _, link = CASES[case]
    plan = Plan(sites=tuple(f"s{site}" for site in range(sites)), default=link)
    context = multiprocessing.get_context("spawn")
    with daemon_of(plan, Path(os.devnull)) as daemon:
        pipes, processes = [], []
        for site in range(sites):
            ours, theirs = context.Pipe()
            arguments = (theirs, str(daemon.socket_path), site, case, algorithm)
            processes.append(context.Process(target=be_site, args=arguments, daemon=True))
            processes[-1].start()
            pipes.append(ours)
        gather(pipes)
        for pipe in pipes:
            pipe.send("listening")
        gather(pipes)
        times_s = []
        for _ in range(TRIES):
            start_s = time.monotonic() + 0.5
            for pipe in pipes:
                pipe.send(start_s)
            times_s.append(max(gather(pipes)) - start_s)
        for pipe in pipes:
            pipe.send(None)
        for process in processes:
            process.join(LIMIT_S)
    return statistics.median(times_s[1:])


def main() -> None:
    """Measure and print."""
    for case, (sites, size, link) in enumerate(CASES):
        assert link.rate_bps is not None
        times = "  ".join(f"{a} {sum_s(case, a):.3f} s" for a in ("ring", "mesh"))
        print(
            f"{sites} sites, {size} bytes, {1e3 * link.delay_s:g} ms, "
            f"{link.rate_bps / 1e6:g} Mbit/s:  {times}",
            flush=True,
        )


if __name__ == "__main__":
    main()
