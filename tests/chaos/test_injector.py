from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from netem.plan import Link
from powertrip.chaos.injector import Injector, NoLinks, changed_links
from powertrip.chaos.processes import JobProcesses, NobodyThere
from powertrip.chaos.schedule import Fault
from powertrip.runtime.faults import Faults

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="processes are found through /proc"
)

WRITES = """
import sys, time
with open(sys.argv[1], "ab", buffering=0) as file:
    while True:
        try:
            file.write(b".")
        except OSError as error:
            print(error.errno, flush=True)
            break
        time.sleep(0.01)
time.sleep(60)
"""


@pytest.fixture
def job(tmp_path):
    """A process that looks like site 1's, and writes to a file all the time."""
    value = uuid.uuid4().hex
    like = ["powertrip.runtime.process", "site"]
    with subprocess.Popen(
        [sys.executable, "-c", WRITES, str(tmp_path / "file"), *like],
        env=os.environ | {"POWERTRIP_CHAOS": value, "RANK": "1"},
        stdout=subprocess.PIPE,
        text=True,
    ) as site:
        try:
            processes = JobProcesses(f"POWERTRIP_CHAOS={value}")
            processes.await_one("site", 1)
            yield site, processes
        finally:
            site.kill()


def injector(processes, tmp_path):
    return Injector(processes, tmp_path / "faults.json", find_limit_s=0.1)


def state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0]


def await_state(pid, *wanted):
    deadline_s = time.monotonic() + 10
    while state(pid) not in wanted:
        assert time.monotonic() < deadline_s, state(pid)
        time.sleep(0.01)


def test_a_site_is_frozen_and_thawed(tmp_path, job):
    site, processes = job
    with injector(processes, tmp_path).during(Fault(1, 0.0, "freeze_site", (1,), 5.0)):
        await_state(site.pid, "T")
    await_state(site.pid, "S", "R")


def test_a_site_is_killed_and_one_that_is_not_there_cannot_be(tmp_path, job):
    site, processes = job
    kills = injector(processes, tmp_path)
    with pytest.raises(NobodyThere, match=r"no process site of rank 0 for 0\.1 s"):
        kills.begin(Fault(1, 0.0, "kill_site", (0,)))
    kills.begin(Fault(2, 0.0, "kill_site", (1,)))
    assert site.wait(10) == -signal.SIGKILL
    assert processes.all() == []


def test_all_of_a_job_are_killed(tmp_path, job):
    site, processes = job
    injector(processes, tmp_path).begin(Fault(1, 0.0, "kill_job"))
    assert site.wait(10) == -signal.SIGKILL


def test_no_file_grows_on_a_full_disk(tmp_path, job):
    site, processes = job
    with injector(processes, tmp_path).during(Fault(1, 0.0, "disk_full", (), 5.0)):
        assert site.stdout.readline() == "27\n"  # EFBIG
        size = (tmp_path / "file").stat().st_size
    assert (tmp_path / "file").stat().st_size == size


def test_what_sites_do_to_themselves_is_written_and_taken_back(tmp_path, job):
    _, processes = job
    path = tmp_path / "faults.json"
    faults = injector(processes, tmp_path)
    assert faults.environment == {"POWERTRIP_FAULTS": str(path)}
    dark = Fault(1, 0.0, "no_power", (1,), 5.0)
    bad = Fault(2, 0.0, "bad_update", (0,), 5.0, "exploding")
    faults.begin(dark)
    faults.begin(bad)
    found = Faults.read(path)
    assert found.no_power == (1,)
    assert [(b.site, b.how, b.name) for b in found.bad_updates] == [(0, "exploding", "2")]
    faults.end(dark)
    assert Faults.read(path).no_power == ()
    faults.close()
    assert Faults.read(path) == Faults()


def test_a_job_without_emulated_links_has_none_to_change(tmp_path, job):
    _, processes = job
    with pytest.raises(NoLinks, match="no emulated links"):
        injector(processes, tmp_path).begin(Fault(1, 0.0, "cut_link", (0, 1), 5.0))


def test_what_faults_make_of_links():
    links = {
        (src, dst): Link(delay_s=0.01, rate_bps=1e6) for src in range(4) for dst in range(4)
        if src != dst
    }  # fmt: skip

    def cut(*faults):
        return {pair for pair, link in changed_links(links, faults).items() if not link.up}

    def fault(kind, *sites):
        return Fault(1, 0.0, kind, sites, 5.0)

    assert cut() == set()
    assert cut(fault("cut_link", 1, 3)) == {(1, 3), (3, 1)}
    assert cut(fault("one_way", 1, 3)) == {(1, 3)}
    assert cut(fault("partition", 2)) == {(2, 0), (2, 1), (2, 3), (0, 2), (1, 2), (3, 2)}
    assert cut(fault("one_way", 1, 3), fault("one_way", 3, 1)) == {(1, 3), (3, 1)}
    slow = changed_links(links, [fault("slow_link", 0, 2), fault("cut_link", 0, 2)])
    assert slow[2, 0] == Link(delay_s=0.01, rate_bps=1e4, up=False)
    assert {pair for pair in links if slow[pair] != links[pair]} == {(0, 2), (2, 0)}
