import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyroute2 import IPRoute

from netem import cleanup, namespaces
from netem.cleanup import Leftover, Owner
from netem.errors import EngineError, Unsupported

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root")


def dead_owner() -> Owner:
    """The owner that a process was that has ended."""
    code = "from netem.cleanup import Owner; print(Owner.of_this_process('dead').to_text())"
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return Owner.from_text(done.stdout.strip())


def test_this_process_is_alive() -> None:
    owner = Owner.of_this_process("job")
    assert owner.pid == os.getpid()
    assert owner.alive() is True


def test_a_process_that_has_ended_is_dead() -> None:
    assert dead_owner().alive() is False


def test_a_later_process_of_the_same_number_is_another() -> None:
    owner = Owner.of_this_process("job")
    assert replace(owner, started=owner.started - 1).alive() is False


def test_a_process_that_only_waits_to_be_reaped_is_dead() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        mine = Owner.of_this_process("job")
        owner = replace(mine, pid=child.pid, started=int(fields[19]))
        assert owner.alive() is True
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert owner.alive() is False


def test_of_another_namespace_of_processes_nothing_is_known() -> None:
    owner = Owner.of_this_process("job")
    assert replace(owner, pid_namespace=owner.pid_namespace + 1).alive() is None


def test_an_owner_fits_an_alias_and_is_read_back() -> None:
    owner = Owner.of_this_process('a "job" of\nmany lines ' * 30)
    assert Owner.from_text(owner.to_text()) == owner
    assert len(Owner("x" * 100, 2**31, 2**62, 2**32).to_text()) < 255


@pytest.mark.parametrize("text", ["", "my own alias", "netem nonsense", 'netem {"job": "x"}'])
def test_other_texts_are_no_owners(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Owner.from_text(text)


@pytest.fixture
def machine() -> Iterator[IPRoute]:
    """Netlink in a namespace that plays the machine's own network."""
    fd = namespaces.new_namespace()
    try:
        with namespaces.inside(fd), IPRoute(groups=0) as netlink:
            yield netlink
    finally:
        os.close(fd)


@as_root
def test_only_interfaces_of_the_dead_are_removed(machine: IPRoute) -> None:
    aliases = {
        "dead": dead_owner().to_text(),
        "alive": Owner.of_this_process("alive").to_text(),
        "elsewhere": replace(dead_owner(), pid_namespace=1).to_text(),
        "own": "something of the user's",
    }
    for name, alias in aliases.items():
        machine.link("add", ifname=name, kind="bridge")
        (index,) = machine.link_lookup(ifname=name)
        machine.link("set", index=index, ifalias=alias)
    (found,) = cleanup.find_interfaces()
    assert (found.kind, found.name) == ("interface", "dead")
    assert "job dead has ended" in str(found)
    cleanup.remove([found, found])
    names = {message.get_attr("IFLA_IFNAME") for message in machine.get_links()}
    assert names == {"lo", "alive", "elsewhere", "own"}


def bound(path: Path) -> socket.socket:
    path.parent.mkdir()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(str(path))
    sock.listen()
    return sock


def test_only_folders_without_a_listener_are_removed(tmp_path: Path) -> None:
    bound(tmp_path / "netem-dead" / "daemon.sock").close()
    starting, failed = tmp_path / "netem-starting", tmp_path / "netem-failed"
    starting.mkdir()
    failed.mkdir()
    os.utime(failed, (0, 0))
    others = tmp_path / "netem-others"
    others.mkdir()
    (others / "notes.txt").write_text("mine")
    (tmp_path / "netem-link").symlink_to(failed)
    with bound(tmp_path / "netem-alive" / "daemon.sock"):
        found = cleanup.find_folders(tmp_path)
        assert [Path(each.name).name for each in found] == ["netem-dead", "netem-failed"]
        cleanup.remove([*found, *found])
        left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["netem-alive", "netem-link", "netem-others", "netem-starting"]


@as_root
def test_clean_says_what_it_has_removed(
    machine: IPRoute, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleanup.tempfile, "gettempdir", lambda: str(tmp_path))
    assert cleanup.clean() == ()
    bound(tmp_path / "netem-dead" / "daemon.sock").close()
    machine.link("add", ifname="left", kind="bridge", ifalias=dead_owner().to_text())
    (index,) = machine.link_lookup(ifname="left")
    machine.link("set", index=index, ifalias=dead_owner().to_text())
    assert [each.kind for each in cleanup.clean()] == ["interface", "folder"]
    assert cleanup.find() == ()
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "netem-x"
    (folder / "full").mkdir(parents=True)
    with pytest.raises((Unsupported, EngineError), match=r"cannot remove folder .*netem-x"):
        cleanup.remove([Leftover("folder", str(folder), "a test")])
