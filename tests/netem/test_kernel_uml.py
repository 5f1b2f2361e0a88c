"""Runs real_*.py where there is a real sch_netem: on this kernel, or in User-Mode Linux."""

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from netem.capabilities import has_qdisc
from tests.netem import uml

ROOT = Path(__file__).parents[2]
INNER = sorted(Path(__file__).parent.glob("real_*.py"))
TIME_S = 240.0
OPTIONS = f"-m pytest -q -p no:cacheprovider -o junit_logging=system-out --rootdir {ROOT}"
PYTEST = OPTIONS.split()


def inner_tests() -> list[str]:
    """Return the names of the tests in real_*.py, without importing them."""
    texts = (path.read_text() for path in INNER)
    return [name for text in texts for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE)]


def run_directly(folder: Path) -> None:
    """Run the tests on this machine's own kernel."""
    command = [sys.executable, *PYTEST, f"--junitxml={folder}/junit.xml", *map(str, INNER)]
    subprocess.run(command, cwd=ROOT, timeout=TIME_S, check=False)


def run_in_guest(folder: Path) -> None:
    """Run the tests inside User-Mode Linux; skip, or fail under CI, where it is not installed."""
    missing = uml.missing()
    if missing is not None:
        message = f"this kernel has no sch_netem, and User-Mode Linux is not installed: {missing}"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    command = [sys.executable, *PYTEST, "--junitxml=/run/host/junit.xml", *map(str, INNER)]
    result = uml.run(command, folder, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, timeout_s=TIME_S)
    print(f"boot {result.boot_s:.1f} s, tests {result.run_s:.1f} s\n{result.output}")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[ElementTree.Element]]:
    """Run the tests once, and return the elements of their report by the test's name."""
    folder = tmp_path_factory.mktemp("real-netem")
    if os.geteuid() == 0 and has_qdisc("netem"):
        run_directly(folder)
    else:
        run_in_guest(folder)
    report = folder / "junit.xml"
    if not report.exists():
        pytest.fail("the tests left no report")
    found: dict[str, list[ElementTree.Element]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        found.setdefault(str(case.get("name")).partition("[")[0], []).append(case)
    return found


@pytest.mark.timeout(TIME_S + 60)
@pytest.mark.parametrize("name", inner_tests())
def test_real_netem(name: str, outcomes: dict[str, list[ElementTree.Element]]) -> None:
    assert name in outcomes, f"{name} did not run: the time was over, or a module does not import"
    for case in outcomes[name]:
        print(case.get("name"), f"{float(case.get('time', 0)):.1f} s")
        for part in case.iter():
            if part.tag == "system-out":
                print(part.text)
            assert part.tag not in ("failure", "error", "skipped"), part.text or part.get("message")
