"""Processes that know nothing of each other find one daemon."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from fcntl import flock
from pathlib import Path

import pytest

from netem import shared
from netem.capabilities import Choice, detect
from netem.errors import AddressInUse, EngineError, EnterError, Unsupported
from netem.plan import Link, Plan
from netem.shared import join_daemon
from netem.underlay import Underlay
from tests.netem.fakes import REPO, WAIT_S

PLAN = Plan(sites=("a", "b", "c"), default=Link(delay_s=0.01))
JOINER = """
import json, sys
from netem.client import enter
from netem.plan import Link, Plan
from netem.shared import join_daemon
plan = Plan(sites=("a", "b", "c"), default=Link(delay_s=0.01))
joined = join_daemon(sys.argv[1], plan, "userspace")
site = enter(joined.socket_path, int(sys.argv[2]))
started = joined.daemon and joined.daemon.pid
print(json.dumps([str(joined.socket_path), started, joined.choice.reason]), flush=True)
sys.stdin.read()
"""

needs_userspace = pytest.mark.skipif(
    bool(detect().missing("userspace")), reason="the userspace backend cannot work here"
)


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(shared.tempfile, "tempdir", str(tmp_path))
    return tmp_path


@contextmanager
def joiner(folder: Path, job: str, site: int) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", JOINER, job, str(site)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=REPO,
        env=os.environ | {"TMPDIR": str(folder)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=WAIT_S)


@needs_userspace
def test_the_first_starts_the_daemon_the_others_find_it_and_it_ends_with_the_last(tmp_path: Path):
    job = uuid.uuid4().hex
    with ExitStack() as stack:
        processes = [stack.enter_context(joiner(tmp_path, job, site)) for site in range(3)]
        found = [json.loads(process.stdout.readline()) for process in processes]
        paths, started, reasons = zip(*found, strict=True)
        assert len(set(paths)) == len(set(reasons)) == 1
        (pid,) = [pid for pid in started if pid is not None]
        with pytest.raises(EnterError, match="has other links than these"):
            with_tempdir(tmp_path, job, PLAN.model_copy(update={"rate_scale": 0.5}))
        daemon = stack.enter_context(os.fdopen(os.pidfd_open(pid)))
        for process in processes:
            assert not select.select([daemon], [], [], 0)[0]
            process.send_signal(signal.SIGKILL)
            process.wait(WAIT_S)
        assert select.select([daemon], [], [], WAIT_S)[0]
        assert not Path(paths[0]).parent.exists()


def with_tempdir(folder: Path, job: str, plan: Plan) -> None:
    before, shared.tempfile.tempdir = shared.tempfile.tempdir, str(folder)
    try:
        join_daemon(job, plan)
    finally:
        shared.tempfile.tempdir = before


@needs_userspace
def test_a_daemon_that_was_killed_is_replaced(tmp_path: Path):
    job = uuid.uuid4().hex
    with joiner(tmp_path, job, 0) as first:
        path, pid, _ = json.loads(first.stdout.readline())
        os.kill(pid, signal.SIGKILL)
        with joiner(tmp_path, job, 0) as second:
            again, new_pid, _ = json.loads(second.stdout.readline())
            assert again == path
            assert new_pid not in (None, pid)


def test_off_and_none_need_no_daemon(folders: Path, monkeypatch: pytest.MonkeyPatch):
    assert join_daemon("job", PLAN, "off")[1:] == (None, None)
    none = Choice("none", "no backend: nothing works")
    monkeypatch.setattr(shared, "choose_backend", lambda wanted: none)
    for _ in range(2):
        assert join_daemon("job", PLAN) == (none, None, None)


def test_a_backend_that_cannot_work_is_told_to_every_process(folders: Path, monkeypatch):
    def choose(wanted: str) -> Choice:
        raise Unsupported("no TUN here")

    monkeypatch.setattr(shared, "choose_backend", choose)
    for _ in range(2):
        with pytest.raises(Unsupported, match="no TUN here"):
            join_daemon("job", PLAN, "userspace")


def test_one_that_hangs_while_it_starts_does_not_hang_the_others(
    folders: Path, monkeypatch: pytest.MonkeyPatch
):
    hanging = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys\nfrom netem import shared\n"
            "shared.tempfile.tempdir = sys.argv[1]\n"
            "def hang(wanted):\n    print('in', flush=True); sys.stdin.read()\n"
            "shared.choose_backend = hang\n"
            "from netem.plan import Plan\nshared.join_daemon('job', Plan(sites=('a',)))",
            str(folders),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPO,
    )
    try:
        assert hanging.stdout.readline() == "in\n"
        asked_s = time.monotonic()
        with pytest.raises(EngineError, match=r"starting its links for 0\.2 s"):
            join_daemon("job", PLAN, timeout_s=0.2)
        assert time.monotonic() - asked_s >= 0.2
    finally:
        hanging.kill()
        hanging.communicate(timeout=WAIT_S)
    # What it has left in the folder is in nobody's way.
    monkeypatch.setattr(shared, "choose_backend", lambda wanted: Choice("none", ""))
    assert [path.name for path in folders.glob("*/*")] == ["lock"]
    join_daemon("job", PLAN)
    assert list(folders.iterdir()) == []


def test_a_folder_that_others_can_write_to_is_not_used(folders: Path, monkeypatch):
    seen = []

    def choose(wanted: str) -> Choice:
        seen.extend(folders.iterdir())
        return Choice("none", "")

    monkeypatch.setattr(shared, "choose_backend", choose)
    join_daemon("job", PLAN)
    (folder,) = seen
    assert not folder.exists()
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(AddressInUse, match="open to others"):
        join_daemon("job", PLAN)
    folder.rmdir()
    folder.symlink_to(folders)
    with pytest.raises(AddressInUse, match="cannot be used"):
        join_daemon("job", PLAN)


@pytest.mark.parametrize("finding", [Choice("none", "nothing works"), Unsupported("no TUN here")])
def test_who_waits_meanwhile_is_told_what_was_found_and_who_comes_later_is_not(
    folders: Path, monkeypatch: pytest.MonkeyPatch, finding: Choice | Unsupported
):
    entered, waiting, asked = threading.Event(), threading.Semaphore(0), []

    def choose(wanted: str) -> Choice:
        asked.append(wanted)
        entered.set()
        if len(asked) == 1:
            assert all(waiting.acquire(timeout=WAIT_S) for _ in range(2))
        if isinstance(finding, Unsupported):
            raise finding
        return finding

    told: list[object] = []
    met = threading.local()

    def take(fd: int, operation: int) -> None:
        try:
            flock(fd, operation)
        except BlockingIOError:
            if not getattr(met, "it", False):
                met.it = True
                waiting.release()
            raise

    def join() -> None:
        try:
            told.append(join_daemon("job", PLAN, timeout_s=WAIT_S))
        except Unsupported as error:
            told.append(str(error))

    monkeypatch.setattr(shared, "choose_backend", choose)
    monkeypatch.setattr(shared.fcntl, "flock", take)
    threads = [threading.Thread(target=join) for _ in range(3)]
    threads[0].start()
    assert entered.wait(WAIT_S)
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert len(asked) == 1
    assert told == 3 * [str(finding) if isinstance(finding, Unsupported) else (finding, None, None)]
    assert list(folders.iterdir()) == []
    join()
    assert len(asked) == 2


def test_a_folder_that_vanishes_while_one_waits_for_it_is_made_anew(folders: Path, monkeypatch):
    """As when `clean`, or a daemon that ends, removes it."""

    taken = []

    def take(fd: int, operation: int) -> None:
        flock(fd, operation)
        taken.append(fd)
        if len(taken) == 1:
            (folder,) = folders.iterdir()
            shutil.rmtree(folder)

    def choose(wanted: str) -> Choice:
        (folder,) = folders.iterdir()
        return Choice("none", " ".join(path.name for path in folder.iterdir()))

    monkeypatch.setattr(shared, "choose_backend", choose)
    monkeypatch.setattr(shared.fcntl, "flock", take)
    assert join_daemon("job", PLAN).choice.reason == "lock"
    assert len(taken) == 2
    assert list(folders.iterdir()) == []


def test_several_machines_need_the_backend_kernel(folders: Path, monkeypatch: pytest.MonkeyPatch):
    wanted = []

    def choose(name: str) -> Choice:
        wanted.append(name)
        raise Unsupported("no")

    monkeypatch.setattr(shared, "choose_backend", choose)
    underlay = Underlay(local="10.0.0.1", peers=("10.0.0.2",), vni=7)
    with pytest.raises(Unsupported):
        join_daemon("job", PLAN, underlay=underlay)
    assert wanted == ["kernel"]
