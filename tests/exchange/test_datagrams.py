import socket
import time

import pytest

from powertrip.exchange.datagrams import open_socket, receive, send_train


@pytest.fixture
def ends():
    with open_socket("127.0.0.1") as a, open_socket("127.0.0.1") as b:
        yield a, b


def test_a_train_arrives_whole_with_its_end_last(ends):
    a, b = ends
    assert send_train(a, b"x" * 1400, 50, b"end", b.getsockname()) == 51
    sizes = [len(receive(b).data) for _ in range(51)]
    assert sizes == [1400] * 50 + [3]
    with pytest.raises(BlockingIOError):
        receive(b)


def test_the_time_is_the_kernels_and_not_that_of_reading(ends):
    a, b = ends
    a.sendto(b"first", b.getsockname())  # the kernel begins to stamp a moment after it is asked to
    time.sleep(0.05)
    receive(b)
    before_ns = time.time_ns()
    a.sendto(b"now", b.getsockname())
    after_ns = time.time_ns()
    time.sleep(0.05)
    arrival = receive(b)
    assert arrival.sender == a.getsockname()
    assert before_ns - 1_000_000 <= arrival.time_ns <= after_ns + 40_000_000


def test_what_cannot_be_sent_is_an_error(ends):
    a, _ = ends
    with pytest.raises(OSError, match="Message too long"):
        send_train(a, b"x" * 70_000, 3, b"end", ("127.0.0.1", 9))


def test_an_address_that_is_not_here_leaves_no_socket_open():
    with pytest.raises(OSError, match="assign requested address"):
        open_socket("203.0.113.1")
    with pytest.raises((OSError, socket.gaierror)):
        open_socket("no.such.host.invalid")
