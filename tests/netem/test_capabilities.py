import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from netem import capabilities
from netem.capabilities import Capabilities, Capability, choose_backend, detect, has_qdisc
from netem.errors import Unsupported

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root")
ROOT = str(Path(__file__).parents[2])


def found(*missing: str) -> Capabilities:
    """A machine that has everything but what is named."""
    names = Capabilities.__dataclass_fields__
    return Capabilities(
        **{
            name: Capability(name, False, "not here", f"install {name}")
            if name in missing
            else Capability(name, True, "here")
            for name in names
        }
    )


def test_auto_takes_the_kernel_where_it_can() -> None:
    choice = choose_backend("auto", found())
    assert choice.name == "kernel"
    assert "\n" not in choice.reason


@pytest.mark.parametrize("lacks", ["root", "namespaces", "veth", "sch_htb", "sch_netem"])
def test_auto_takes_userspace_next_and_says_why(lacks: str) -> None:
    choice = choose_backend("auto", found(lacks))
    assert choice.name == "userspace"
    assert f"{lacks} is missing (not here)" in choice.reason


@pytest.mark.parametrize(
    ("missing", "works"),
    [
        (("tun_as_user",), True),
        (("user_namespaces",), True),
        (("tun", "user_namespaces"), False),
        (("tun", "tun_as_user"), False),
        (("namespaces", "tun_as_user"), False),
        (("tun",), True),
    ],
)
def test_userspace_needs_one_of_its_two_ways(missing: tuple[str, ...], works: bool) -> None:
    assert (found(*missing).missing("userspace") == ()) is works


def test_what_userspace_lacks_is_told_by_the_way_that_is_open_to_the_user() -> None:
    as_user = found("root", "namespaces", "tun", "tun_as_user").missing("userspace")
    assert [c.name for c in as_user] == ["tun_as_user"]
    as_administrator = found("tun", "tun_as_user").missing("userspace")
    assert [c.name for c in as_administrator] == ["tun"]


def test_auto_takes_none_in_the_end() -> None:
    choice = choose_backend("auto", found("sch_netem", "tun", "tun_as_user"))
    assert choice.name == "none"
    assert "sch_netem" in choice.reason
    assert "tun" in choice.reason
    assert "doctor" in choice.reason


def test_off_looks_at_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capabilities, "detect", lambda: pytest.fail("looked"))
    assert choose_backend("off").name == "off"


@pytest.mark.parametrize("wanted", ["kernel", "userspace"])
def test_a_wanted_backend_is_taken_or_refused_with_all_remedies(wanted: str) -> None:
    assert choose_backend(wanted, found()).name == wanted
    lacking = found("sch_netem", "sch_htb", "tun", "tun_as_user")
    with pytest.raises(Unsupported) as caught:
        choose_backend(wanted, lacking)
    expected = {"kernel": ("sch_netem", "sch_htb"), "userspace": ("tun",)}[wanted]
    for name in expected:
        assert f"{name}: not here; install {name}" in str(caught.value)


def test_an_unknown_backend() -> None:
    with pytest.raises(Unsupported, match="auto, kernel, userspace, off"):
        choose_backend("kernle")


@as_root
def test_what_is_detected_is_consistent_and_leaves_no_trace() -> None:
    network, descriptors = Path("/proc/self/ns/net"), Path("/proc/self/fd")
    before, files = network.stat(), len(list(descriptors.iterdir()))
    machine = detect()
    assert network.stat().st_ino == before.st_ino
    assert len(list(descriptors.iterdir())) == files
    assert machine.root.ok
    assert [c.name for c in machine.all] == list(Capabilities.__dataclass_fields__)
    for capability in machine.all:
        assert capability.detail
        assert bool(capability.remedy) is not capability.ok
    if machine.namespaces.ok:
        assert has_qdisc("htb") is machine.sch_htb.ok
        assert has_qdisc("netem") is machine.sch_netem.ok
    assert machine.to_json()[0] == {
        "name": "root",
        "ok": True,
        "detail": "runs as root",
        "remedy": "",
        "known": True,
    }


@as_root
@pytest.mark.parametrize(("kind", "there"), [("pfifo", True), ("nonesuch", False)])
def test_a_discipline_that_every_kernel_has_and_one_that_none_has(kind: str, there: bool) -> None:
    assert has_qdisc(kind) is there


def test_without_rights_the_remedies_are_told() -> None:
    """In a process whose user may make no namespaces at all."""
    code = (
        "import ctypes, os\n"
        "from netem import capabilities, namespaces\n"
        "if os.geteuid() == 0:\n"
        "    os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "found = capabilities.detect()\n"
        "assert not found.root.ok and not found.namespaces.ok\n"
        "assert all(c.remedy for c in found.all if not c.ok)\n"
        "assert [c.name for c in found.missing('kernel')] == ['root', 'namespaces']\n"
        "try:\n"
        "    capabilities.has_qdisc('htb')\n"
        "except capabilities.Unsupported as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": ROOT},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "root" in done.stdout


@pytest.mark.parametrize(
    ("code", "number", "name", "remedy"),
    [
        (10, errno.ENOSPC, "user_namespaces", "user.max_user_namespaces"),
        (10, errno.EPERM, "user_namespaces", "unprivileged_userns_clone"),
        (11, errno.EPERM, "user_namespaces", "apparmor_restrict_unprivileged_userns"),
        (12, errno.EACCES, "tun_as_user", "chmod 0666 /dev/net/tun"),
        (12, errno.ENOENT, "tun_as_user", "modprobe tun"),
    ],
)
def test_what_keeps_a_user_out(
    code: int, number: int, name: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = f"import sys\nprint({number})\nsys.exit({code})"
    monkeypatch.setattr(capabilities, "_USER_PROBE", probe)
    machine = replace(detect(), root=Capability("root", False, "a user", "run as root"))
    capability = getattr(machine, name)
    assert not capability.ok
    assert remedy in capability.remedy
    assert os.strerror(number) in capability.detail


def test_something_else_in_the_place_of_tun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capabilities, "TUN_DEVICE", "/dev/null")
    tun = detect().tun
    assert (tun.ok, tun.detail) == (False, "/dev/null is something else than the device for TUN")
    assert "modprobe tun" in tun.remedy


def test_a_probe_that_breaks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capabilities, "_USER_PROBE", "raise ValueError('broken')")
    assert "broken" in detect().user_namespaces.detail
