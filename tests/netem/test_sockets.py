"""Listening at a path that may be taken, and knowing who is at the other end."""

import os
import socket
from pathlib import Path

import pytest

from netem.errors import AddressInUse
from netem.sockets import hung_up, listen, process_of


def test_a_path_that_is_listened_at_is_in_use(tmp_path: Path):
    path = tmp_path / "a.sock"
    with listen(path), pytest.raises(AddressInUse, match=r"a\.sock"):
        listen(path)


def test_a_socket_that_nobody_listens_at_is_replaced(tmp_path: Path):
    path = tmp_path / "a.sock"
    listen(path).close()
    assert path.is_socket()
    with listen(path), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def test_a_file_is_not_replaced(tmp_path: Path):
    path = tmp_path / "a.sock"
    path.write_text("mine")
    with pytest.raises(AddressInUse):
        listen(path)
    assert path.read_text() == "mine"


@pytest.mark.parametrize("name", ["none/a.sock", "x" * 200])
def test_a_path_that_cannot_be(tmp_path: Path, name: str):
    with pytest.raises(AddressInUse, match="cannot listen at"):
        listen(tmp_path / name)


def test_the_other_end():
    here, there = socket.socketpair()
    with here:
        assert process_of(here) == os.getpid()
        assert not hung_up(here)
        there.sendall(b"last words")
        assert not hung_up(here)
        there.close()
        assert hung_up(here)
