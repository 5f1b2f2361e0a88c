from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from datetime import timedelta
from queue import Empty, SimpleQueue

import pytest
import torch.distributed as dist

from powertrip.runtime.signals import STOP_SIGNALS, StopSignals


@pytest.fixture
def calls():
    return SimpleQueue()


def kill(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_calls_back_from_another_thread(calls, number):
    with StopSignals(lambda n: calls.put((n, threading.current_thread()))):
        kill(number)
        called, thread = calls.get(timeout=20)
    assert called == number
    assert thread is not threading.main_thread()
    assert not thread.is_alive()


def test_only_the_first_of_many_calls_back(calls):
    with StopSignals(calls.put):
        kill(signal.SIGTERM)
        assert calls.get(timeout=20) == signal.SIGTERM
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            kill(number)
    # `close` has read all of them.
    with pytest.raises(Empty):
        calls.get_nowait()


def test_handlers_descriptor_and_mask_are_as_before_afterwards():
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with StopSignals(lambda number: None):
        assert [signal.getsignal(number) for number in STOP_SIGNALS] != before
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask
    assert len(os.listdir("/proc/self/fd")) == descriptors  # noqa: PTH208
    previous = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(previous)
    assert previous == -1


EARLY = """
import os, signal, threading
from powertrip.runtime.signals import STOP_SIGNALS, StopSignals

signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
os.kill(os.getpid(), signal.SIGTERM)
called = threading.Event()
with StopSignals(lambda number: called.set()):
    assert called.wait(20)
os.kill(os.getpid(), signal.SIGTERM)
print("lived on")
"""


def test_a_signal_that_came_while_blocked_is_heard_and_one_that_comes_after_harmless():
    # In a process of its own: other threads of this one would take the signal.
    done = subprocess.run([sys.executable, "-c", EARLY], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "lived on\n", "")


def test_other_signals_are_left_alone(calls):
    seen = []
    previous = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    try:
        with StopSignals(calls.put):
            kill(signal.SIGUSR1)
            kill(signal.SIGTERM)
            assert calls.get(timeout=20) == signal.SIGTERM
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert seen == [signal.SIGUSR1]


def test_a_main_thread_that_is_stuck_in_native_code_does_not_delay_it():
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    stuck, free = (dist.TCPStore("127.0.0.1", server.port, is_master=False) for _ in range(2))

    def release(number: int) -> None:
        free.set("released", str(number))

    killer = threading.Thread(target=lambda: (free.wait(["waiting"]), kill(signal.SIGTERM)))
    with StopSignals(release):
        killer.start()
        stuck.set("waiting", "")
        # A handler of Python's would run only when this has ended.
        stuck.wait(["released"], timedelta(seconds=30))
    killer.join(timeout=20)
    assert int(stuck.get("released")) == signal.SIGTERM
