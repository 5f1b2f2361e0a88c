import fcntl
import os
import socket
from pathlib import Path

import pytest

from netem import cleanup
from netem.cleanup import Leftover
from netem.errors import EngineError


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
        found = cleanup.find(tmp_path)
        assert [each.folder.name for each in found] == ["netem-dead", "netem-failed"]
        cleanup.remove([*found, *found])
        left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["netem-alive", "netem-link", "netem-others", "netem-starting"]


def test_a_folder_in_which_a_daemon_is_being_started_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "netem-shared"
    bound(folder / "daemon.sock").close()
    with (folder / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert cleanup.find(tmp_path) == ()
    (found,) = cleanup.find(tmp_path)
    cleanup.remove([found])
    assert not folder.exists()


def test_clean_says_what_it_has_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanup.tempfile, "gettempdir", lambda: str(tmp_path))
    assert cleanup.clean() == ()
    bound(tmp_path / "netem-dead" / "daemon.sock").close()
    (removed,) = cleanup.clean()
    assert (
        str(removed)
        == f"folder {tmp_path}/netem-dead: nobody listens at its socket, or is about to"
    )
    assert cleanup.find() == ()
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_removed(tmp_path: Path) -> None:
    folder = tmp_path / "netem-x"
    (folder / "full").mkdir(parents=True)
    with pytest.raises(EngineError, match=r"cannot remove folder .*netem-x"):
        cleanup.remove([Leftover(folder, "a test")])
