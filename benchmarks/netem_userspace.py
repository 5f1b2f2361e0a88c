"""How true the userspace links are: ``python -m benchmarks.netem_userspace [grid loss gloo ...]``.

`grid` sets round trip and TCP throughput beside what was asked, over delays and rates, and gives
the emulator's share of a processor core. `loss` does so for lost datagrams. `ring` times a ring
all-reduce by plain sockets against its model: 2 (n - 1) steps of a delay and an n-th of the bytes;
`gloo` does so for Gloo's, `mesh` for one in two such steps, in which all pairs are busy at once.
`flood` is an unlimited link.
Figures are medians of several tries; nothing is asserted.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import select
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from netem.check import Probe, ProbeSites, loss_probe, rtt_probe
from netem.client import INTERFACE, Control, Membership, enter
from netem.launch import RunningDaemon, start_daemon
from netem.plan import Link, Plan

DELAYS_S = (0.001, 0.025, 0.1, 0.2)
RATES_BPS = (10e6, 100e6, 1e9)
LOSSES = (0.01, 0.05)
SITES = 8
ALL_REDUCE_LINK = Link(delay_s=0.02, rate_bps=200e6)
ALL_REDUCE_BYTES = 10 << 20
PORT = 5200
LIMIT_S = 60.0


def cpu_s(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def daemon_of(plan: Plan, log: Path) -> RunningDaemon:
    """Start the emulator of a plan."""
    return start_daemon(plan, "userspace", log_path=log)


def measured(sites: ProbeSites, probe: Probe) -> dict[str, Any]:
    """Make one probe; exit with its text if it fails."""
    for _, result in sites.measure([probe]):
        if result is None:
            raise SystemExit(f"the probe {probe} had no result")
        return result
    raise SystemExit("no probe")


def cell(link: Link, tries: int, log: Path) -> list[str]:
    """Measure one link, new for each try; return a row of the table."""
    trips_s, rates_bps, shares, dropped = [], [], [], 0
    plan = Plan(sites=("a", "b"), default=link)
    # TCP needs about a dozen round trips to fill a link.
    warmup_s, window_s = max(0.5, 24 * link.delay_s), max(1.5, 8 * link.delay_s)
    for _ in range(tries):
        with daemon_of(plan, log) as daemon, ProbeSites(daemon.socket_path, plan) as sites:
            trips_s.append(measured(sites, rtt_probe(plan, 0, 1))["median_s"])
            arguments = {"warmup_s": warmup_s, "window_s": window_s}
            seconds = warmup_s + window_s
            used_s = cpu_s(daemon.pid)
            stream = Probe(0, 1, "throughput", arguments, seconds, link.rate_bps or 0.0)
            result = measured(sites, stream)
            shares.append((cpu_s(daemon.pid) - used_s) / seconds)
            rates_bps.append(result["received_bytes"] * 8 / result["seconds"])
            with Control(daemon.socket_path) as control:
                dropped += sum(pair.dropped for pair in control.stats().values())
    trip_s, rate_bps = statistics.median(trips_s), statistics.median(rates_bps)
    asked_s = 2 * link.delay_s
    share = "" if link.rate_bps is None else f"{100 * rate_bps / link.rate_bps:.1f} %"
    return [
        f"{1e3 * link.delay_s:g} ms",
        "unlimited" if link.rate_bps is None else f"{link.rate_bps / 1e6:g} Mbit/s",
        f"{1e3 * trip_s:.2f} ms",
        f"{1e3 * (trip_s - asked_s):+.2f} ms",
        f"{rate_bps / 1e6:.2f} Mbit/s",
        share,
        f"{dropped}",
        f"{100 * statistics.median(shares):.0f} %",
    ]


def grid(links: Sequence[Link], options: argparse.Namespace) -> Table:
    """Measure links one after the other."""
    table = new_table("delay", "rate", "RTT", "off by", "throughput", "of rate", "dropped", "CPU")
    for link in links:
        row = cell(link, options.tries, options.log)
        print("  ".join(row), flush=True)
        table.add_row(*row)
    return table


def loss(options: argparse.Namespace) -> Table:
    """Measure lost datagrams."""
    table = new_table("asked", "measured", "off by")
    for asked in LOSSES:
        plan = Plan(sites=("a", "b"), default=Link(delay_s=0.01, rate_bps=100e6, loss=asked))
        values = []
        for _ in range(options.tries):
            with daemon_of(plan, options.log) as daemon:
                with ProbeSites(daemon.socket_path, plan) as sites:
                    result = measured(sites, loss_probe(plan, 0, 1))
                values.append(1 - result["received"] / result["sent"])
        value = statistics.median(values)
        table.add_row(f"{asked:.1%}", f"{value:.2%}", f"{value / asked - 1:+.1%}")
    return table


def all_reduce(way: str, options: argparse.Namespace) -> Table:
    """Time an all-reduce between `SITES` sites, by a ring, by Gloo or by a mesh."""
    plan = Plan(sites=tuple(f"s{site}" for site in range(SITES)), default=ALL_REDUCE_LINK)
    assert ALL_REDUCE_LINK.rate_bps is not None
    chunk_s = ALL_REDUCE_BYTES // SITES * 8 / ALL_REDUCE_LINK.rate_bps
    model_s = len(steps(way, 0)) * (ALL_REDUCE_LINK.delay_s + chunk_s)
    context = multiprocessing.get_context("spawn")
    with daemon_of(plan, options.log) as daemon:
        pipes, processes = [], []
        for site in range(SITES):
            ours, theirs = context.Pipe()
            arguments = (theirs, str(daemon.socket_path), site, way)
            processes.append(context.Process(target=be_site, args=arguments, daemon=True))
            processes[-1].start()
            pipes.append(ours)
        for word in ("listening", "connected"):
            gather(pipes)
            for pipe in pipes:
                pipe.send(word)
        gather(pipes)
        times_s = []
        used_s, begin_s = cpu_s(daemon.pid), time.monotonic()
        # The first two are a warm-up: TCP finds the rate.
        for _ in range(options.tries + 2):
            start_s = time.monotonic() + 0.05
            for pipe in pipes:
                pipe.send(start_s)
            times_s.append(max(gather(pipes)) - start_s)
        share = (cpu_s(daemon.pid) - used_s) / (time.monotonic() - begin_s)
        with Control(daemon.socket_path) as control:
            dropped = sum(pair.dropped for pair in control.stats().values())
        for pipe in pipes:
            pipe.send(None)
        for process in processes:
            process.join(LIMIT_S)
    value_s = statistics.median(times_s[2:])
    table = new_table("all-reduce", "model", "first", "median", "off by", "dropped", "CPU")
    table.add_row(
        f"{way}, {SITES} sites, {ALL_REDUCE_BYTES >> 20} MiB, "
        f"{1e3 * ALL_REDUCE_LINK.delay_s:g} ms, {ALL_REDUCE_LINK.rate_bps / 1e6:g} Mbit/s",
        f"{model_s:.3f} s",
        f"{times_s[0]:.3f} s",
        f"{value_s:.3f} s",
        f"{value_s / model_s - 1:+.1%}",
        f"{dropped}",
        f"{100 * share:.0f} %",
    )
    return table


def steps(way: str, site: int) -> list[tuple[list[int], list[int]]]:
    """Return to whom a site sends a chunk and from whom it receives one, step by step."""
    if way != "mesh":
        return [([(site + 1) % SITES], [(site - 1) % SITES])] * (2 * (SITES - 1))
    others = [other for other in range(SITES) if other != site]
    return [(others, others)] * 2


def gather(pipes: Sequence[Connection]) -> list[float]:
    """Wait for the word of every site."""
    replies = []
    for site, pipe in enumerate(pipes):
        if not pipe.poll(LIMIT_S):
            raise SystemExit(f"site {site} does not answer")
        replies.append(pipe.recv())
    return replies


def be_site(pipe: Connection, socket_path: str, site: int, way: str) -> None:
    """Be one site of an all-reduce until told to end."""
    membership = enter(socket_path, site)
    exchange = join_gloo(pipe, membership) if way == "gloo" else join(pipe, membership, way)
    pipe.send(0.0)
    while (start_s := pipe.recv()) is not None:
        select.select([], [], [], max(0.0, start_s - time.monotonic()))
        exchange()
        pipe.send(time.monotonic())


def join_gloo(pipe: Connection, membership: Membership) -> Callable[[], Any]:
    """Connect by Gloo; return what makes an all-reduce."""
    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
    import torch
    from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore

    torch.set_num_threads(1)
    limit, hub = timedelta(seconds=LIMIT_S), membership.plan.address(0)
    if membership.site == 0:
        store = TCPStore(hub, PORT, SITES, True, limit, wait_for_workers=False)
    told(pipe)
    if membership.site != 0:
        store = TCPStore(hub, PORT, SITES, False, limit, wait_for_workers=False)
    group = ProcessGroupGloo(PrefixStore("g", store), membership.site, SITES, limit)
    update = torch.ones(ALL_REDUCE_BYTES // 4)
    told(pipe)
    return lambda: group.allreduce([update]).wait()


def join(pipe: Connection, membership: Membership, way: str) -> Callable[[], Any]:
    """Connect by plain sockets; return what makes an all-reduce."""
    site = membership.site
    listener = socket.create_server((membership.address, PORT), backlog=SITES)
    told(pipe)
    outward = {}
    for other in range(SITES):
        if other != site:
            address = (membership.plan.address(other), PORT)
            outward[other] = socket.create_connection(address, timeout=LIMIT_S)
            outward[other].sendall(bytes((site,)))
    inward = {}
    for _ in range(SITES - 1):
        stream, _ = listener.accept()
        inward[stream.recv(1)[0]] = stream
    for stream in (*outward.values(), *inward.values()):
        stream.setblocking(False)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    told(pipe)

    def exchange() -> None:
        for targets, sources in steps(way, site):
            move([outward[target] for target in targets], [inward[source] for source in sources])

    return exchange


def told(pipe: Connection) -> None:
    """Say that a stage is reached, and wait until everybody has."""
    pipe.send(0.0)
    pipe.recv()


def move(outward: Sequence[socket.socket], inward: Sequence[socket.socket]) -> None:
    """Send a chunk to some and receive as much from others."""
    size = ALL_REDUCE_BYTES // SITES
    chunk, buffer = memoryview(bytes(size)), memoryview(bytearray(size))
    sent, received = dict.fromkeys(outward, 0), dict.fromkeys(inward, 0)
    while sent or received:
        readable, writable, _ = select.select(list(received), list(sent), [], LIMIT_S)
        if not (readable or writable):
            raise SystemExit("nothing moves any more")
        for stream in writable:
            sent[stream] += stream.send(chunk[sent[stream] :])
            if sent[stream] == size:
                del sent[stream]
        for stream in readable:
            got = stream.recv_into(buffer, size - received[stream])
            if not got:
                raise SystemExit("a site has ended")
            received[stream] += got
            if received[stream] == size:
                del received[stream]


def new_table(*columns: str) -> Table:
    """Make a plain table."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def main() -> None:
    """Measure and print."""
    sections: dict[str, Callable[[argparse.Namespace], Table]] = {
        "grid": lambda options: grid(
            [Link(delay_s=delay_s, rate_bps=rate) for delay_s in DELAYS_S for rate in RATES_BPS],
            options,
        ),
        "loss": loss,
        "ring": lambda options: all_reduce("ring", options),
        "gloo": lambda options: all_reduce("gloo", options),
        "mesh": lambda options: all_reduce("mesh", options),
        "flood": lambda options: grid([Link(), Link(delay_s=0.025)], options),
    }
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("sections", nargs="*", metavar="grid|loss|ring|gloo|mesh|flood")
    parser.add_argument("--tries", type=int, default=3, help="measurements per figure")
    parser.add_argument("--log", type=Path, default=Path(os.devnull), help="of the emulator")
    options = parser.parse_args()
    console = Console(soft_wrap=True)
    for name in options.sections or sections:
        if name not in sections:
            parser.error(f"there is no section {name!r}; the sections are {', '.join(sections)}")
        console.print(sections[name](options), "")


if __name__ == "__main__":
    main()
