"""Folders of runs: they are replayed, gone on with and compared, or refused."""

from __future__ import annotations

import hashlib
import json
import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from powertrip.config import dump_config
from powertrip.coordination.replay import replay
from powertrip.coordination.run_dir import CONFIG_FILE, reopen_run_dir
from powertrip.errors import InputError, PowerTripError
from powertrip.runtime import manifest
from powertrip.runtime.checkpoint import load_model, load_site
from powertrip.runtime.durable import CheckpointUnreadable, FileEntry
from powertrip.runtime.manifest import (
    COORDINATOR,
    MANIFEST,
    MODEL,
    latest,
    newest,
    read_coordinator,
    set_aside,
    site_file,
    write_coordinator,
    write_manifest,
)
from powertrip.runtime.resuming import resolve
from powertrip.simulation.calibrate import read_run
from powertrip.telemetry.eventlog import EVENT_LOG, read_events
from powertrip.telemetry.resuming import keep_until
from powertrip.telemetry.telemetry import Telemetry
from tests.coordination.test_snapshots import Played
from tests.fuzz.odd import changed, damaged, fuzzed, says
from tests.fuzz.test_messages import SETUP
from tests.runtime.checkpoints import write_checkpoint

ROUNDS = 4
KEYS = ("vector", "outer_state", "model", "format", "round", "digest", "site", "inner")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run of eight sites, with its log and two checkpoints."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / CONFIG_FILE).write_text(dump_config(SETUP.config), encoding="utf-8")
    with Telemetry(SETUP.config.telemetry, folder) as telemetry:
        played = Played(SETUP, telemetry)
        played._course.announce(backend="gloo", pacing="off", links="none")
        played._course.start(played._holders)
        played._course.record()
        played.play_rounds(ROUNDS)
    for round_ in (2, 3):
        write_checkpoint(folder, round_, state=played._course.snapshot())
    return folder


@pytest.fixture
def copy(run, tmp_path):
    """Makes the run's folder anew, for each example."""

    def copy():
        folder = tmp_path / "run"
        shutil.rmtree(folder, ignore_errors=True)
        return shutil.copytree(run, folder)

    return copy


def lines_of(folder) -> list[bytes]:
    return (folder / EVENT_LOG).read_bytes().splitlines(keepends=True)


@fuzzed(25)
@given(st.data())
def test_an_event_log_is_read_replayed_and_cut_back_or_refused(run, copy, data):
    copied = copy()
    lines = lines_of(run)
    at = data.draw(st.integers(0, len(lines) - 1))
    if data.draw(st.booleans()):
        lines[at] = json.dumps(data.draw(changed(json.loads(lines[at])))).encode() + b"\n"
    else:
        lines[at] = data.draw(damaged(lines[at]))
    log = copied / EVENT_LOG
    log.write_bytes(b"".join(lines))
    for read in (
        lambda: list(read_events(log)),
        lambda: list(replay(copied)),
        lambda: list(replay(copied, ["selection.policy=powertrip"])),
        lambda: read_run(copied),
        lambda: keep_until(log, 2, lambda event: None),
    ):
        try:
            read()
        except InputError as error:
            says(error, copied)


@fuzzed(20)
@given(st.data())
def test_a_run_goes_on_or_says_why_not(run, copy, data):
    copied = copy()
    name = data.draw(st.sampled_from([CONFIG_FILE, MANIFEST, COORDINATOR, MODEL, "site-0001.pt"]))
    path = copied / name if name == CONFIG_FILE else latest(run).folder / name
    path = copied / path.relative_to(run) if path.is_relative_to(run) else path
    path.write_bytes(data.draw(damaged(path.read_bytes())))
    try:
        setup = resolve(None, [], resume=copied)
        found = latest(copied)
        reopen_run_dir(copied, setup.config)
        set_aside(copied, found)
        load_model(found.folder)
        read_coordinator(found.folder)
        load_site(found.folder, 1)
    except InputError as error:
        says(error, copied)


@fuzzed(20)
@given(st.data())
def test_a_manifest_is_read_or_refused(run, copy, data):
    """One whose checksum is right, as somebody who means harm would make it."""
    copied = copy()
    folder = latest(run).folder
    whole = json.loads((folder / MANIFEST).read_bytes())
    body = data.draw(changed(whole["manifest"]))
    try:
        checksum = manifest._checksum(manifest._json(body))
        text = manifest._json({"manifest": body, "checksum": checksum})
    except ValueError:
        return
    (copied / folder.relative_to(run) / MANIFEST).write_bytes(text)
    for read in (
        lambda: latest(copied),
        lambda: newest(copied),
        lambda: resolve(None, [], resume=copied),
    ):
        try:
            read()
        except InputError as error:
            says(error, copied)


def odd_content(data) -> object:
    tensors = st.sampled_from([
        torch.ones(3), torch.ones(0), torch.ones(2, 2), torch.full((2,), torch.nan),
        torch.arange(3), torch.ones(1, dtype=torch.complex64),
    ])  # fmt: skip
    odd = st.none() | st.integers() | st.text(max_size=3) | tensors
    return data.draw(st.dictionaries(
        st.sampled_from(KEYS),
        odd | st.just(2) | st.dictionaries(st.text(max_size=2), odd, max_size=2),
    ) | odd)  # fmt: skip


@fuzzed(25)
@given(st.data())
def test_a_checkpoint_that_was_made_up_is_read_or_refused(run, copy, data):
    copied = copy()
    found = latest(copied)
    name = data.draw(st.sampled_from([MODEL, site_file(1)]))
    path = found.folder / name
    if data.draw(st.booleans()):
        torch.save(odd_content(data), path)
    else:
        path.write_bytes(data.draw(damaged(path.read_bytes())))
    _seal(found, name)
    try:
        load_model(found.folder)
        load_site(found.folder, 1)
    except CheckpointUnreadable as error:
        says(error, found.folder)


@fuzzed(20)
@given(st.data())
def test_a_coordinators_state_that_was_made_up_is_restored_or_refused(run, copy, data):
    copied = copy()
    found = latest(copied)
    state = data.draw(changed(read_coordinator(found.folder)))
    try:
        write_coordinator(found.folder, state)
    except ValueError:
        return  # no JSON
    _seal(found, COORDINATOR)
    played = Played(SETUP)
    try:
        played._course.restore(read_coordinator(found.folder))
        played._course.resume({0, 1, 2})
    except PowerTripError:
        return
    json.dumps(played._course.snapshot(), allow_nan=False)


def _seal(found, name: str) -> None:
    """Write the manifest anew, as if the file had been meant to be as it is."""
    content = (found.folder / name).read_bytes()
    checksum = hashlib.blake2b(content, digest_size=32).hexdigest()
    files = [entry for entry in found.manifest.files if entry.name != name]
    files.append(FileEntry(name=name, bytes=len(content), checksum=checksum))
    write_manifest(
        found.folder, files, round_=found.manifest.round, digest=found.manifest.digest,
        sites=found.manifest.sites, base_dir=found.folder,
    )  # fmt: skip
