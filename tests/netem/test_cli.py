"""The command line: its texts, exit codes and what it leaves behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyroute2 import IPRoute

from netem import namespaces
from netem.capabilities import choose_backend

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 60
PLAN = """
sites: [a, b]
default: {delay_s: 0.01, rate_bps: 20e6}
"""
links = pytest.mark.skipif(
    choose_backend("auto").name == "none", reason=choose_backend("auto").reason
)


def netem(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end."""
    return subprocess.run(
        [sys.executable, "-m", "netem", *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.fixture
def plan(tmp_path: Path) -> str:
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN)
    return str(path)


def test_without_arguments_the_commands_are_shown() -> None:
    done = netem()
    for command in ("check", "doctor", "run", "clean"):
        assert command in done.stdout + done.stderr


def test_doctor_says_what_the_machine_can_do() -> None:
    done = netem("doctor", "--json")
    told = json.loads(done.stdout)
    assert told["backend"] == choose_backend("auto").name
    assert done.returncode == (1 if told["backend"] == "none" else 0)
    names = {each["name"] for each in told["capabilities"]}
    assert {"root", "sch_netem", "tun", "user_namespaces"} <= names
    for each in told["capabilities"]:
        assert bool(each["remedy"]) is not each["ok"]
    table = netem("doctor").stdout
    assert "sch_netem" in table
    assert told["backend"] in table


def test_a_plan_that_cannot_be_read_is_told_without_a_traceback(tmp_path: Path) -> None:
    for command in (["check", "no.yaml"], ["run", "no.yaml", "--", "true"]):
        done = netem(*command, cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.startswith("netem: 1 problem in no.yaml:")
        assert "Traceback" not in done.stderr
    (tmp_path / "bad.yaml").write_text("sites: [a, a]\ndefault: {delay_s: -1}\n")
    done = netem("check", "bad.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert "default.delay_s" in done.stderr


def test_check_without_links_is_refused(plan: str) -> None:
    done = netem("check", plan, "--backend", "off")
    assert done.returncode == 1
    assert "no links to check with --backend off" in done.stderr


@links
def test_check_of_one_site_has_nothing_to_measure(tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    path.write_text("sites: [alone]\n")
    done = netem("check", str(path), "--json")
    assert (done.returncode, json.loads(done.stdout)["pairs"]) == (0, [])
    assert "nothing to check" in done.stderr
    assert "measuring" not in done.stderr


@links
def test_check_measures_every_pair_and_finds_it_as_asked(plan: str) -> None:
    done = netem("check", plan, "--json", "--tolerance", "0.25", "--rtt-tolerance", "0.5")
    told = json.loads(done.stdout)
    assert [(pair["src"], pair["dst"]) for pair in told["pairs"]] == [("a", "b"), ("b", "a")]
    assert done.returncode == 0, [pair["problems"] for pair in told["pairs"]]
    for pair in told["pairs"]:
        assert pair["asked_rtt_s"] == pytest.approx(0.02)
        assert 0.019 < pair["least_rtt_s"] < 0.03
        assert 15e6 < pair["rate_bps"] < 21e6
        assert pair["loss"] < 0.01


@links
def test_check_ends_with_1_when_a_pair_is_off(plan: str) -> None:
    # Headers take some of any rate, so no stream is within 0 of it.
    done = netem("check", plan, "--tolerance", "0", "--rtt-tolerance", "0.5")
    assert done.returncode == 1
    assert "the throughput is off by more than 0 %" in done.stdout
    assert "2 off by more than the tolerance" in done.stdout


@links
def test_run_gives_every_site_its_address_and_passes_the_output_on(plan: str) -> None:
    script = (
        "import os, socket; s = socket.socket(); s.bind((os.environ['NETEM_ADDRESS'], 0)); "
        "print(os.environ['NETEM_SITE'], os.environ['NETEM_NAME'], s.getsockname()[0], "
        "os.environ['NETEM_SITES'], [n for _, n in socket.if_nameindex()])"
    )
    done = netem("run", plan, "--", sys.executable, "-c", script)
    assert done.returncode == 0, done.stderr
    addresses = "10.77.0.10,10.77.0.11"
    assert sorted(done.stdout.splitlines()) == [
        f"a | 0 a 10.77.0.10 {addresses} ['lo', 'eth0']",
        f"b | 1 b 10.77.0.11 {addresses} ['lo', 'eth0']",
    ]


def test_run_with_the_links_off_uses_the_machines_network(plan: str) -> None:
    done = netem("run", plan, "--backend", "off", "--", "sh", "-c", "echo $NETEM_ADDRESS")
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == ["a | 127.0.0.1", "b | 127.0.0.1"]


def test_a_command_that_fails_ends_the_others_and_gives_its_code(plan: str) -> None:
    begin_s = time.monotonic()
    script = "test $NETEM_SITE = 1 && exit 7; sleep 50"
    done = netem("run", plan, "--backend", "off", "--", "sh", "-c", script)
    assert done.returncode == 7
    assert time.monotonic() - begin_s < 30


def test_a_command_that_does_not_exist_is_named(plan: str) -> None:
    done = netem("run", plan, "--backend", "off", "--", "no-such-command")
    assert done.returncode == 127
    assert "a | netem: cannot run no-such-command: No such file or directory" in done.stdout


def daemon_of(process: subprocess.Popen[str]) -> int:
    """Return the link daemon that a command has started."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (daemon,) = (
        int(pid) for pid in children if "netem.daemon" in Path(f"/proc/{pid}/cmdline").read_text()
    )
    return daemon


def _wait_gone(pid: int) -> bool:
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


@links
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_a_run_that_is_ended(plan: str, number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "netem", "run", plan, "--", "sh", "-c", "echo $$; sleep 50"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        pids = [int(process.stdout.readline().split("|")[1]) for _ in range(2)]
        process.send_signal(number)
        process.wait(TIMEOUT_S)
        assert process.returncode == (128 + number if number == signal.SIGTERM else -number)
        assert all(_wait_gone(pid) for pid in pids)


@links
def test_the_daemons_death_ends_a_run_and_is_named(plan: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "netem", "run", plan, "--", "sh", "-c", "echo up; sleep 50"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().endswith("up\n")
        daemon = daemon_of(process)
        os.kill(daemon, signal.SIGKILL)
        _, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1
    assert f"the link daemon (process {daemon}) has ended" in errors
    assert "Traceback" not in errors


def started_check(plan: str) -> subprocess.Popen[str]:
    """Start a check in a session of its own, and return when it is measuring."""
    process = subprocess.Popen(
        [sys.executable, "-m", "netem", "check", plan],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    while "measuring" not in (line := process.stderr.readline()):
        assert line, "it has ended"
    return process


@links
def test_the_daemons_death_ends_a_check_and_is_named(plan: str) -> None:
    with started_check(plan) as process:
        os.kill(daemon_of(process), signal.SIGKILL)
        out, errors = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, out) == (1, "")
    assert "the link daemon" in errors
    assert "has ended" in errors
    assert "Traceback" not in errors


@links
def test_an_interrupt_ends_a_check_without_a_traceback(plan: str) -> None:
    with started_check(plan) as process:
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    assert "Traceback" not in errors


@links
@pytest.mark.skipif(os.geteuid() != 0, reason="makes a network namespace: run as root")
def test_a_subnet_that_the_machine_uses_itself(plan: str) -> None:
    machine = namespaces.new_namespace()
    try:
        with namespaces.inside(machine):
            with IPRoute(groups=0) as netlink:
                netlink.link("add", ifname="office", kind="bridge")
                (index,) = netlink.link_lookup(ifname="office")
                netlink.addr("add", index=index, address="10.77.0.10", prefixlen=16)
                netlink.link("set", index=index, state="up")
            done = netem("run", plan, "--", "sh", "-c", "grep -c eth0 /proc/net/route")
    finally:
        os.close(machine)
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, ["a | 1", "b | 1"])


@links
def test_two_jobs_of_one_plan_run_at_once(plan: str) -> None:
    script = (
        "import os, socket, sys\n"
        "site = int(os.environ['NETEM_SITE']); peer = os.environ['NETEM_SITES'].split(',')[1]\n"
        "mine = socket.create_server((os.environ['NETEM_ADDRESS'], 4000))\n"
        "mine.settimeout(30)\n"
        "for _ in range(1500 * (1 - site)):\n"
        "    try:\n"
        "        talk = socket.create_connection((peer, 4000), 10); break\n"
        "    except ConnectionRefusedError:\n"
        "        pass\n"
        "if site:\n"
        "    mine.accept()[0].sendall(sys.argv[1].encode())\n"
        "else:\n"
        "    print(talk.makefile().read())\n"
    )
    command = [sys.executable, "-m", "netem", "run", plan, "--", sys.executable, "-c", script]
    jobs = [
        subprocess.Popen(
            [*command, name], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for name in ("first", "second")
    ]
    for job, name in zip(jobs, ("first", "second"), strict=True):
        out, errors = job.communicate(timeout=TIMEOUT_S)
        assert (job.returncode, out) == (0, f"a | {name}\n"), errors


def test_clean_says_what_it_removed() -> None:
    done = netem("clean")
    assert done.returncode == 0
    assert done.stdout == "nothing to remove\n" or done.stdout.startswith("removed ")
