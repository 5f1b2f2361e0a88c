"""A TUN device in a namespace of its own."""

import os
import subprocess
import sys

import pytest

from netem import tun
from netem.errors import Unsupported
from tests.netem.fakes import REPO, needs_root

CODE = """
import os, select, socket
from netem import tun
fd = tun.open_tun("eth0", "10.1.2.3", "255.255.255.0")
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    s.sendto(b"hello", ("10.1.2.4", 9))
    assert s.getsockname()[0] == "0.0.0.0"
while True:
    assert select.select([fd], [], [], 10)[0]
    frame = os.read(fd, 70000)
    if frame[10] == 0x45:
        break
assert frame[22:26] == bytes([10, 1, 2, 3]) and frame[26:30] == bytes([10, 1, 2, 4])
assert frame.endswith(b"hello")
assert not os.get_blocking(fd) and not os.get_inheritable(fd)
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    try:
        s.sendto(b"x", ("9.9.9.9", 9))
    except OSError as error:
        print("no route:", error.strerror)
"""


@needs_root
def test_what_the_site_sends_is_read():
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", CODE],
        cwd=REPO,
        env=os.environ | {"PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "no route: Network is unreachable\n"


def test_a_machine_without_tun(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tun, "DEVICE", "/dev/net/no-such")
    with pytest.raises(Unsupported, match="modprobe tun"):
        tun.open_tun("eth0", "10.1.2.3", "255.255.255.0")


def test_a_device_that_is_not_tun(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tun, "DEVICE", "/dev/null")
    with pytest.raises(Unsupported, match="CAP_NET_ADMIN"):
        tun.open_tun("eth0", "10.1.2.3", "255.255.255.0")
