from __future__ import annotations

import os
import subprocess
import sys
import uuid

import pytest

from powertrip.chaos.processes import JobProcesses
from powertrip.chaos.remains import Remains

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="processes are found through /proc"
)

HOLDS = """
import os, socket, sys
held = []
server = socket.create_server(("127.0.0.1", 0))
for line in sys.stdin:
    held += [os.open("/dev/null", os.O_RDONLY) for _ in range(int(line))]
    print(len(held), flush=True)
"""


@pytest.fixture
def held(tmp_path):
    """A process that holds a port, and opens as many descriptors as it is told to."""
    value = uuid.uuid4().hex
    (tmp_path / "tmp").mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, "powertrip.runtime.process", "site"],
        env=os.environ | {"POWERTRIP_CHAOS": value, "RANK": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as process:

        def open_more(count):
            process.stdin.write(f"{count}\n")
            process.stdout.readline()

        try:
            open_more(0)
            processes = JobProcesses(f"POWERTRIP_CHAOS={value}")
            yield process, open_more, Remains(processes, tmp_path / "tmp")
        finally:
            process.kill()


def test_what_is_left_is_told(tmp_path, held):
    process, _, remains = held
    remains.sample()
    (tmp_path / "tmp" / "torchelastic_x").mkdir()
    left = remains.left(limit_s=0.1)
    assert left[0] == f"the process site 1 ({process.pid}) is left"
    assert left[1].startswith("port ")
    assert left[1].endswith(f"is left, which site 1 ({process.pid}) listened at")
    assert left[2:] == [f"{tmp_path / 'tmp' / 'torchelastic_x'} is left"]

    process.kill()
    process.wait()
    (tmp_path / "tmp" / "torchelastic_x").rmdir()
    assert remains.left(limit_s=5) == []


@pytest.mark.parametrize(("more", "growing"), [(0, False), (1, True)])
def test_a_process_that_holds_more_and_more_is_told(held, more, growing):
    process, open_more, remains = held
    open_more(30)  # at its start
    for _ in range(180):
        remains.sample()
        open_more(more)
    found = remains.growing()
    assert bool(found) is growing
    if growing:
        assert found[0].startswith(f"site 1 ({process.pid}) holds more and more descriptors: ")
