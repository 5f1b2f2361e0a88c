from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powertrip.coordination.messages import (
    Back,
    Begin,
    Broken,
    Commit,
    Failure,
    Finished,
    Gone,
    Hurry,
    Probe,
    Ready,
    Report,
    Save,
    Saved,
    SavedFile,
    Stop,
    StopRequest,
    Tally,
    Transfer,
    Trial,
)
from powertrip.errors import ConfigError
from powertrip.runtime.errors import ControlPlaneError
from powertrip.runtime.seal import MOST_BYTES
from powertrip.runtime.wire import MOST_ITEMS, decode_entry, decode_mail

BEGIN = Begin(
    generation=2,
    members=(3, 0),
    steps=None,
    deadline_s=(0.1, 1 / 3),
    first_round=5,
    transfers=(Transfer(donor=0, newcomer=3),),
    clock_s=1e-9,
)
ENTRIES = [
    BEGIN,
    BEGIN.model_copy(update={"steps": (1, 2), "deadline_s": None, "transfers": ()}),
    Commit(generation=1, round=2),
    Commit(generation=1, round=3, begin=BEGIN),
    Commit(generation=1, round=3, save=Save(folder="/tmp/ü", round=3, keeper=2)),
    Hurry(),
    Stop(after_round=3, save=None),
]
TALLY = Tally(correct=3.5, loss_sum=0.1, count=7)
TRIAL = Trial(part=1.5, before=TALLY, all=TALLY, half_a=TALLY, half_b=TALLY)
MAILS = [
    Ready(site=1, samples=2, steps=3, update_bytes=4, digest="d", backend="gloo"),
    Report(
        site=1, generation=2, round=3, steps=4, samples=5, loss=0.1 + 0.2, local_s=1, lag_s=0,
        loss_rms=0.9, update_norm=2.5, layer_norms=(1.5, 2.0), trial=TRIAL,
        exchange_s=2, evaluation_s=3, bytes_sent=10**12, digest="d", validation=TALLY, test=None,
        rebuild_s=0, joined_bytes=0,
    ),
    StopRequest(site=0, signal=15),
    Failure(site=2, error="OSError", text='a "quoted"\nline', exit_code=1),
    Gone(site=2, incarnation=1, reason="silent"),
    Back(site=2, incarnation=1),
    Finished(site=2),
    Saved(site=2, round=3, files=(SavedFile(name="model.pt", bytes=3, checksum="c"),), seconds=0.5),
    Broken(site=2, generation=3, round=4, awaited=1, adds=True, text="late"),
]  # fmt: skip


@pytest.mark.parametrize("message", ENTRIES)
def test_entries_of_the_log_arrive_as_they_were_sent(message):
    assert decode_entry(message.encode()) == message


@pytest.mark.parametrize("message", MAILS)
def test_mails_arrive_as_they_were_sent(message):
    assert decode_mail(message.encode()) == message


@pytest.mark.parametrize("message", MAILS)
def test_a_mail_is_no_entry(message):
    with pytest.raises(ControlPlaneError, match="a message on the control plane cannot be read"):
        decode_entry(message.encode())


@pytest.mark.parametrize("message", ENTRIES)
def test_an_entry_is_no_mail(message):
    with pytest.raises(ControlPlaneError):
        decode_mail(message.encode())


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"round": "next"}, "commit.round: Input should be a valid integer"),
        ({"extra": 1}, "commit.extra: Extra inputs are not permitted"),
        ({"kind": "commmit"}, "does not match any of the expected tags"),
        ({"generation": None}, "commit.generation"),
    ],
)
def test_a_message_that_does_not_fit_says_where(change, text):
    fields = Commit(generation=1, round=2).model_dump() | change
    with pytest.raises(ControlPlaneError, match=text):
        decode_entry(json.dumps(fields).encode())


def test_measures_of_a_model_may_be_no_numbers_and_times_may_not():
    report = MAILS[1]
    odd = {
        "loss": math.nan, "loss_rms": math.inf, "update_norm": -math.inf,
        "layer_norms": (math.nan, 1.0), "validation": Tally(correct=1, loss_sum=math.nan, count=2),
    }  # fmt: skip
    arrived = decode_mail(report.model_copy(update=odd).encode())
    assert arrived.encode() == report.model_copy(update=odd).encode()
    assert math.isnan(arrived.loss)
    assert arrived.loss_rms == math.inf
    fields = json.loads(report.encode())
    for name in ("local_s", "lag_s", "exchange_s", "evaluation_s", "rebuild_s", "samples"):
        for value in (math.nan, math.inf, "NaN", -1, 1e300, 10**400):
            with pytest.raises(ControlPlaneError, match=name):
                decode_mail(json.dumps(fields | {name: value}).encode())


def test_an_entry_speaks_of_sites_that_there_are_of_each_once():
    alone = {"members": (0,), "deadline_s": (1.0,), "transfers": ()}
    pair = (Transfer(donor=0, newcomer=3),)
    changes = {
        4: [{}, {"following": BEGIN}, {"half": (3,)}, {"steps": (1, 2), "deadline_s": None}, alone],
        3: [{}, {"members": (1, 0)}, alone | {"following": BEGIN}, alone | {"transfers": pair}],
        5: [
            {"members": (0, 0)}, {"members": (), "deadline_s": ()}, {"deadline_s": (1.0,)},
            {"steps": (1,)}, {"half": (2,)}, {"transfers": (Transfer(donor=4, newcomer=4),)},
            {"transfers": (Transfer(donor=0, newcomer=1),)},
            {"members": (0, 4), "transfers": (Transfer(donor=5, newcomer=4),)},
            {"following": BEGIN.model_copy(update={"members": (5, 0)})},
        ],
    }  # fmt: skip
    for sites, several in changes.items():
        for change in several:
            begin = BEGIN.model_copy(update=change)
            for entry in (begin, Commit(generation=1, round=1, begin=begin)):
                if sites == 4:
                    assert decode_entry(entry.encode(), sites) == entry
                    continue
                with pytest.raises(ControlPlaneError, match=f"other than {sites} sites"):
                    decode_entry(entry.encode(), sites)
    keeper = Save(folder="f", round=3, keeper=2)
    for entry in (
        Commit(generation=1, round=3, save=keeper),
        Stop(after_round=3, save=keeper),
        Probe(endpoints=(None,) * 3),
    ):
        assert decode_entry(entry.encode(), 3) == entry
        with pytest.raises(ControlPlaneError, match="other than 2 sites"):
            decode_entry(entry.encode(), 2)


@settings(max_examples=50)
@given(st.binary() | st.recursive(
    st.none() | st.integers() | st.text(), lambda inner: st.lists(inner)
    | st.dictionaries(st.text() | st.just("kind"), inner | st.sampled_from(["begin", "ready"])),
).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_whatever_else_arrives_is_refused(data):
    for decode in (decode_entry, decode_mail):
        with pytest.raises(ControlPlaneError):
            decode(data)


def test_sizes_and_lengths_have_a_limit():
    ready = MAILS[0].model_dump()
    decode_mail(json.dumps(ready | {"digest": "d" * (MOST_BYTES - 1000)}).encode())
    with pytest.raises(ControlPlaneError, match=r"it has 10[0-9]+ bytes"):
        decode_mail(json.dumps(ready | {"digest": "d" * MOST_BYTES}).encode())
    report = MAILS[1].model_dump()
    decode_mail(json.dumps(report | {"layer_norms": [1] * MOST_ITEMS}).encode())
    with pytest.raises(ControlPlaneError, match="a list in it has 16385 items"):
        decode_mail(json.dumps(report | {"layer_norms": [1] * (MOST_ITEMS + 1)}).encode())
    begin = BEGIN.model_dump() | {"members": [1] * 20_000}
    commit = Commit(generation=1, round=1).model_dump() | {"begin": begin}
    with pytest.raises(ControlPlaneError, match="a list in it has 20000 items"):
        decode_entry(json.dumps(commit).encode())


def test_messages_in_messages_have_a_greatest_depth():
    before, after = BEGIN.encode().decode().split('"following":null')
    deep = f'{before}"following":' * 1000 + "null" + after * 1000
    with pytest.raises(ControlPlaneError, match="cannot be read"):
        decode_entry(deep.encode())


def test_messages_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        BEGIN.generation = 3


def test_the_failure_that_tells_of_an_error():
    failure = Failure.of(ConfigError(["a: is wrong"], "x.yaml"), 4)
    assert failure == Failure(
        site=4,
        error="ConfigError",
        text="1 problem in x.yaml:\n  a: is wrong",
        exit_code=2,
        ends_run=True,
    )
    assert not Failure.of(ControlPlaneError("gone"), 0).ends_run
