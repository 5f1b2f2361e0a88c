import contextlib
import os
import socket
import threading
from pathlib import Path

import pytest

from netem import namespaces
from netem.errors import Unsupported

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root")
OWN = Path("/proc/thread-self/ns/net")


def names() -> set[str]:
    return {name for _, name in socket.if_nameindex()}


@as_root
def test_a_new_namespace_holds_only_a_loopback() -> None:
    home = OWN.stat().st_ino
    fd = namespaces.new_namespace()
    try:
        assert OWN.stat().st_ino == home
        with namespaces.inside(fd):
            assert OWN.stat().st_ino == os.fstat(fd).st_ino != home
            assert names() == {"lo"}
        assert OWN.stat().st_ino == home
    finally:
        os.close(fd)


@as_root
def test_other_threads_stay_and_an_error_comes_home() -> None:
    home = OWN.stat().st_ino
    entered, seen = threading.Event(), []

    def watch() -> None:
        if entered.wait(10):
            seen.append(OWN.stat().st_ino)

    thread = threading.Thread(target=watch)
    thread.start()
    fd = namespaces.new_namespace()
    try:
        with contextlib.suppress(ZeroDivisionError), namespaces.inside(fd):
            entered.set()
            thread.join(10)
            raise ZeroDivisionError
    finally:
        os.close(fd)
    assert OWN.stat().st_ino == home
    assert seen == [home]


@as_root
def test_only_the_thread_that_unshares_is_moved() -> None:
    seen = []

    def work() -> None:
        namespaces.unshare_network()
        seen.append(OWN.stat().st_ino)

    home = OWN.stat().st_ino
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(seen) == 1
    assert seen != [home]
    assert OWN.stat().st_ino == home


def test_what_is_no_namespace_is_not_entered() -> None:
    home, before = OWN.stat().st_ino, len(list(Path("/proc/self/fd").iterdir()))
    with (
        Path("/dev/null").open() as file,
        pytest.raises(OSError, match="network namespace"),
        namespaces.inside(file.fileno()),
    ):
        pytest.fail("entered")
    assert OWN.stat().st_ino == home
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_without_the_right_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def unshare(self, flags: int) -> int:
            return -1

    monkeypatch.setattr(namespaces, "_LIBC", Refusing())
    with pytest.raises(Unsupported, match="needs root"):
        namespaces.new_namespace()
