"""A real run under faults, in about two minutes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from netem.capabilities import choose_backend
from powertrip.chaos.command import Plan, conduct
from powertrip.chaos.processes import JobProcesses
from powertrip.chaos.schedule import parse_kinds
from powertrip.telemetry import events
from powertrip.telemetry.eventlog import EVENT_LOG, read_events
from tests.processes import REPO

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="processes are found through /proc"
)

SCENARIO = REPO / "configs" / "chaos.yaml"
FIVE = ("sites.count=5", "selection.k=4")


@pytest.mark.timeout(300)
@pytest.mark.skipif(choose_backend("auto").name == "none", reason="no emulated links here")
def test_a_run_goes_on_whatever_happens_to_its_sites(tmp_path):
    kinds = parse_kinds("kill_site, freeze_site, cut_link, one_way, bad_update")
    plan = Plan(SCENARIO, FIVE, seed=1, length_s=80, every_s=8, kinds=kinds)
    said: list[str] = []
    code = conduct(plan, tmp_path / "chaos", said.append)
    text = "\n".join(said)
    assert code == 0, text

    faults = [
        json.loads(line)["fault"]
        for line in (tmp_path / "chaos" / "faults.jsonl").read_text().splitlines()
    ]
    assert len(faults) == len(plan.schedule()) >= 6, text
    assert {fault["kind"] for fault in faults} == set(kinds)
    (run,) = (tmp_path / "chaos" / "runs").glob(f"*/{EVENT_LOG}")
    told = list(read_events(run))
    kinds_told = {event.kind for event in told if isinstance(event, events.Failure)}
    assert kinds_told >= {"SiteGone", "ExchangeFailed"}, text
    assert [event for event in told if isinstance(event, events.SiteReturned)], text
    assert "all that must hold held" in text


def test_ctrl_c_ends_the_job_as_well(tmp_path):
    mark = f"POWERTRIP_TEST_MARK={tmp_path.name}"
    command = ["-m", "powertrip.cli", "chaos", str(SCENARIO), "--out", str(tmp_path / "chaos")]
    options = ["--minutes", "1", "--faults", "freeze_site", "sites.count=2", "selection.k=2"]
    start = f"from powertrip.cli import main; import sys; sys.argv[1:] = {command[2:] + options!r}"
    name, _, value = mark.partition("=")
    processes = JobProcesses(mark)
    with subprocess.Popen(
        [sys.executable, "-c", f"{start}; main()"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(REPO), name: value},
        cwd=REPO,
    ) as chaos:
        try:
            deadline_s = time.monotonic() + 60
            while not processes.of("site"):
                assert time.monotonic() < deadline_s, chaos.poll()
                time.sleep(0.1)
            chaos.send_signal(signal.SIGINT)
            _, complaints = chaos.communicate(timeout=45)
            assert chaos.returncode == 130, complaints
            assert processes.all() == []
        finally:
            processes.kill()
    assert complaints == ""
