"""Measures every pair of a plan between throw-away sites, and sets it beside what was asked."""

from __future__ import annotations

import contextlib
import json
import math
import select
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from netem.client import Control
from netem.errors import DaemonLost, NetemError
from netem.interpreter import python_main
from netem.plan import Link, Plan
from netem.probes import DATAGRAM_BYTES

# What one machine's probes and emulator are asked to carry at once; faster pairs go alone.
CAPACITY_BPS = 800e6
DATAGRAMS_PER_S = 4000.0
# An Ethernet header and the like, so that paced datagrams stay well below the link's rate.
_FRAME_BYTES = DATAGRAM_BYTES + 26
_START_S = 30.0
_SLACK_S = 20.0
_RTT_COUNT = 25
_WINDOW_S = 1.0


class CheckFailed(NetemError):
    """A throw-away site could not start, or does not answer any more."""


@dataclass(frozen=True)
class Tolerance:
    """How far a pair may be off.

    Parameters
    ----------
    rate
        Share of the asked rate by which the TCP throughput may differ, either way.
    rtt
        Share of the asked round trip by which the measured one may differ, or `rtt_floor_s` if
        that is more. The least of those measured counts, as a busy machine adds to the others;
        with jitter the median, and the jitter's deviation is allowed beside.
    loss
        Share of the asked loss by which the measured one may differ, beside three standard
        deviations of the measurement itself.
    """

    rate: float = 0.1
    rtt: float = 0.02
    rtt_floor_s: float = 0.001
    loss: float = 0.2


@dataclass
class PairReport:
    """What was asked of an ordered pair and what was measured; None where nothing was.

    `rtt_s` is the median and `least_rtt_s` the least of the round trips. `problems` tell what is
    off by more than the tolerance, `remarks` what is not but should be known.
    """

    src: str
    dst: str
    up: bool
    asked_rtt_s: float
    asked_rate_bps: float | None
    asked_loss: float
    rtt_s: float | None = None
    least_rtt_s: float | None = None
    rate_bps: float | None = None
    loss: float | None = None
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Probe:
    """A measurement to be made: whose, how long it takes, and how much it sends meanwhile."""

    src: int
    dst: int
    kind: str
    arguments: dict[str, float]
    seconds: float
    rate_bps: float


def rounds(probes: Iterable[Probe], capacity_bps: float = CAPACITY_BPS) -> list[list[Probe]]:
    """Sort probes into rounds: in one, no site has two, and together they fit the capacity.

    A probe that is alone above the capacity has a round of its own.
    """
    result: list[list[Probe]] = []
    for probe in sorted(probes, key=lambda p: -p.seconds):
        for group in result:
            busy = {site for p in group for site in (p.src, p.dst)}
            total_bps = sum(p.rate_bps for p in group) + probe.rate_bps
            if busy.isdisjoint((probe.src, probe.dst)) and total_bps <= capacity_bps:
                group.append(probe)
                break
        else:
            result.append([probe])
    return result


def rtt_probe(plan: Plan, src: int, dst: int) -> Probe:
    """Return the measurement of a pair's round trip."""
    trip_s = _round_trip_s(plan, src, dst)
    timeout_s = max(1.0, 4 * trip_s)
    arguments = {"count": _RTT_COUNT, "interval_s": 0.01, "timeout_s": timeout_s}
    return Probe(src, dst, "rtt", arguments, _RTT_COUNT * 0.01 + timeout_s, 0.0)


def loss_probe(plan: Plan, src: int, dst: int) -> Probe:
    """Return the measurement of a pair's loss, of as many datagrams as its loss needs."""
    link = plan.link(src, dst)
    rate_bps = math.inf if link.rate_bps is None else link.rate_bps
    per_s = min(DATAGRAMS_PER_S, 0.4 * rate_bps / (8 * _FRAME_BYTES))
    # Three standard deviations are a fifth of the loss; no longer than 5 s.
    needed = 225 * (1 - link.loss) / link.loss if 0 < link.loss < 1 else 500
    count = max(20, int(min(max(needed, 500), 5 * per_s)))
    timeout_s = 2.0 + 4 * _round_trip_s(plan, src, dst)
    arguments = {"count": count, "packets_per_s": per_s, "timeout_s": timeout_s}
    # Small packets cost as much as large ones, so a pair counts as half of the machine.
    return Probe(src, dst, "loss", arguments, count / per_s + timeout_s, CAPACITY_BPS / 2)


def throughput_probe(plan: Plan, src: int, dst: int) -> Probe:
    """Return the measurement of a pair's throughput, begun after a dozen round trips."""
    rate_bps = plan.link(src, dst).rate_bps
    warmup_s = max(0.5, 12 * _round_trip_s(plan, src, dst))
    # Slow links need a longer window, lest a few packets decide.
    window_s = _WINDOW_S if rate_bps is None else min(10.0, max(_WINDOW_S, 100 * 12e3 / rate_bps))
    arguments = {"warmup_s": warmup_s, "window_s": window_s}
    load_bps = math.inf if rate_bps is None else rate_bps
    return Probe(src, dst, "throughput", arguments, warmup_s + window_s, load_bps)


def judge(report: PairReport, link: Link, back: Link, datagrams: int, limits: Tolerance) -> None:
    """Add to a report's `problems` whatever is off by more than the tolerance.

    Parameters
    ----------
    report
        With its measured values.
    link, back
        What was asked, forth and back.
    datagrams
        How many the loss was measured by.
    limits
        The tolerance.
    """
    if not (link.up and back.up):
        if report.rtt_s is not None:
            report.problems.append("is cut, but datagrams pass")
        return
    total_loss = 1 - (1 - link.loss) * (1 - back.loss)
    if report.rtt_s is None or report.least_rtt_s is None:
        if total_loss < 0.5:
            report.problems.append("no datagram came back")
        return
    jitter_s = math.hypot(link.jitter_s, back.jitter_s)
    allowed_s = max(limits.rtt_floor_s, limits.rtt * report.asked_rtt_s) + jitter_s
    judged_s = report.rtt_s if jitter_s else report.least_rtt_s
    if abs(judged_s - report.asked_rtt_s) > allowed_s:
        report.problems.append(f"the round trip is off by more than {allowed_s * 1e3:.1f} ms")
    elif report.rtt_s - report.asked_rtt_s > allowed_s:
        late_ms = (report.rtt_s - report.least_rtt_s) * 1e3
        report.remarks.append(f"the machine is busy, it adds {late_ms:.1f} ms to most round trips")
    if report.loss is not None:
        # One lost datagram in a thousand is no finding, even where none should be.
        spread = math.sqrt(max(link.loss, 1e-3) * (1 - link.loss) / datagrams)
        allowed = limits.loss * link.loss + 3 * spread
        if abs(report.loss - link.loss) > allowed:
            report.problems.append(f"the loss is off by more than {100 * allowed:.2f} %")
    if _rate_is_off(link, back, report.rate_bps, limits):
        report.problems.append(f"the throughput is off by more than {100 * limits.rate:g} %")


class ProbeSites:
    """A prober process per site, attached to a link daemon.

    Parameters
    ----------
    socket_path
        Where the daemon listens.
    plan
        What it runs.

    Raises
    ------
    CheckFailed
        If a site does not come up; it says why.
    netem.errors.DaemonLost
        If no daemon answers.
    """

    def __init__(self, socket_path: Path | str, plan: Plan) -> None:
        self._plan = plan
        self._sites: list[subprocess.Popen[bytes]] = []
        self._buffers: list[bytes] = []
        self._control = Control(socket_path)
        try:
            for site in range(len(plan.sites)):
                self._sites.append(
                    subprocess.Popen(
                        python_main("netem.prober", str(socket_path), str(site)),
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        bufsize=0,
                        # An interrupt is for this process, at whose end they end.
                        start_new_session=True,
                    )
                )
                self._buffers.append(b"")
            deadline_s = time.monotonic() + _START_S
            self._where = [self._reply(site, deadline_s) for site in range(len(plan.sites))]
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> ProbeSites:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the sites' processes."""
        self._control.close()
        for process in self._sites:
            if process.stdin:
                with contextlib.suppress(OSError):
                    process.stdin.close()
        for process in self._sites:
            try:
                process.wait(2)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout:
                process.stdout.close()

    def measure(self, group: Sequence[Probe]) -> Iterator[tuple[Probe, dict[str, Any] | None]]:
        """Make the probes of a round at once; yield each with its result, None if it failed.

        Raises
        ------
        CheckFailed
            If a site has died.
        netem.errors.DaemonLost
            If the daemon has.
        """
        for probe in group:
            there = self._where[probe.dst]
            request = {
                "probe": probe.kind,
                "address": there["address"],
                "port": there["port"],
                **probe.arguments,
            }
            stdin = self._sites[probe.src].stdin
            assert stdin is not None
            try:
                stdin.write(json.dumps(request).encode() + b"\n")
            except OSError as error:
                raise self._died(probe.src) from error
        deadline_s = time.monotonic() + max(p.seconds for p in group) + _SLACK_S
        for probe in group:
            reply = self._reply(probe.src, deadline_s, may_fail=True)
            yield probe, reply if reply["ok"] else None

    def rtt_s(self, src: int, dst: int, timeout_s: float) -> float | None:
        """Return the least round trip of a pair, None if nothing came back within a time."""
        probe = rtt_probe(self._plan, src, dst)
        probe.arguments["timeout_s"] = timeout_s
        for _, result in self.measure([probe]):
            return None if result is None else float(result["min_s"])
        return None

    def _reply(self, site: int, deadline_s: float, *, may_fail: bool = False) -> dict[str, Any]:
        stdout = self._sites[site].stdout
        assert stdout is not None
        poll = select.poll()
        poll.register(stdout, select.POLLIN)
        poll.register(self._control, select.POLLRDHUP)
        while b"\n" not in self._buffers[site]:
            ready = dict(poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000))
            if self._control.fileno() in ready:
                raise DaemonLost("the link daemon has ended, and all links with it")
            if not ready:
                raise CheckFailed(f"the site {self._plan.sites[site]} does not answer any more")
            data = stdout.read(1 << 16)
            if not data:
                raise self._died(site)
            self._buffers[site] += data
        line, _, self._buffers[site] = self._buffers[site].partition(b"\n")
        reply: dict[str, Any] = json.loads(line)
        if not (reply["ok"] or may_fail):
            raise CheckFailed(f"the site {self._plan.sites[site]}: {reply['text']}")
        return reply

    def _died(self, site: int) -> CheckFailed:
        return CheckFailed(f"the process of the site {self._plan.sites[site]} has ended")


def check(
    sites: ProbeSites, plan: Plan, limits: Tolerance, progress: Callable[[str], None]
) -> list[PairReport]:
    """Measure every ordered pair of a plan as it starts, and judge it.

    Parameters
    ----------
    sites
        Up and attached.
    plan
        What is asked.
    limits
        How far a pair may be off.
    progress
        Is told what is being measured, in a line.

    Returns
    -------
    list of PairReport
        In the order of `plan.pairs()`.
    """
    reports = {}
    for src, dst in plan.pairs():
        link, back = plan.link(src, dst), plan.link(dst, src)
        reports[src, dst] = PairReport(
            plan.sites[src],
            plan.sites[dst],
            link.up and back.up,
            link.delay_s + back.delay_s,
            link.rate_bps,
            link.loss,
        )
    answered = set()
    for group in _announced(plan, "round trips", rtt_probe, list(plan.pairs()), progress):
        for probe, result in sites.measure(group):
            if result is not None:
                answered.add((probe.src, probe.dst))
                reports[probe.src, probe.dst].rtt_s = result["median_s"]
                reports[probe.src, probe.dst].least_rtt_s = result["min_s"]
    pairs = [pair for pair in plan.pairs() if pair in answered]
    datagrams = {}
    for group in _announced(plan, "losses", loss_probe, pairs, progress):
        for probe, result in sites.measure(group):
            datagrams[probe.src, probe.dst] = int(probe.arguments["count"])
            if result is not None:
                reports[probe.src, probe.dst].loss = 1 - result["received"] / result["sent"]
    groups = _announced(plan, "throughputs", throughput_probe, pairs, progress)
    _throughputs(sites, groups, reports)
    doubtful = [
        (src, dst)
        for src, dst in pairs
        if _rate_is_off(
            plan.link(src, dst), plan.link(dst, src), reports[src, dst].rate_bps, limits
        )
    ]
    # A busy machine can hold one second's stream up; more than a few are no accident.
    if 0 < len(doubtful) <= max(2, len(pairs) // 4):
        progress(f"measuring again, one at a time: {len(doubtful)} throughputs that are off")
        _throughputs(sites, [[throughput_probe(plan, *pair)] for pair in doubtful], reports)
        for pair in doubtful:
            reports[pair].remarks.append("the throughput of a second measurement, alone")
    for (src, dst), report in reports.items():
        count = datagrams.get((src, dst), 1)
        judge(report, plan.link(src, dst), plan.link(dst, src), count, limits)
    return list(reports.values())


def _throughputs(
    sites: ProbeSites,
    groups: Sequence[Sequence[Probe]],
    reports: Mapping[tuple[int, int], PairReport],
) -> None:
    for group in groups:
        for probe, result in sites.measure(group):
            if result is not None:
                rate_bps = result["received_bytes"] * 8 / result["seconds"]
                reports[probe.src, probe.dst].rate_bps = rate_bps


def _rate_is_off(link: Link, back: Link, measured_bps: float | None, limits: Tolerance) -> bool:
    # A single TCP stream does not fill a link that loses packets, and should not.
    if link.rate_bps is None or link.loss or back.loss or not (link.up and back.up):
        return False
    return measured_bps is None or abs(measured_bps / link.rate_bps - 1) > limits.rate


def _announced(
    plan: Plan,
    what: str,
    make: Callable[[Plan, int, int], Probe],
    pairs: Sequence[tuple[int, int]],
    progress: Callable[[str], None],
) -> list[list[Probe]]:
    groups = rounds(make(plan, src, dst) for src, dst in pairs)
    if groups:
        seconds = sum(max(p.seconds for p in group) for group in groups)
        progress(f"measuring {what} of {len(pairs)} pairs, {seconds:.0f} s at most")
    return groups


def _round_trip_s(plan: Plan, src: int, dst: int) -> float:
    links = (plan.link(src, dst), plan.link(dst, src))
    return sum(link.delay_s + link.jitter_s for link in links)
