from __future__ import annotations

import hmac
import pickle
import random

import pytest

from powertrip.runtime.errors import ControlPlaneError
from powertrip.runtime.seal import (
    COORDINATOR,
    MOST_BYTES,
    MOST_WAYS,
    Opened,
    Seal,
    SealBroken,
    Seen,
    new_way,
)
from powertrip.runtime.secret import derive_key

SECRET = b"sixteen bytes or more"
RUN = b"r" * 32
WAY = b"12345678"
CONTENT = '{"text": "ü"}'.encode()
SITE = Seal(SECRET, run=RUN, site=3, incarnation=2)
OTHERS = [
    Seal(run=RUN),
    Seal(b"", run=RUN, site=3, incarnation=2),
    Seal(b"another secret", run=RUN, site=3, incarnation=2),
    Seal(SECRET, run=b"s" * 32, site=3, incarnation=2),
    Seal(SECRET, site=3, incarnation=2),
]


def mail(number: int, *, site: int = 3, incarnation: int = 2, way: bytes = WAY) -> Opened:
    return Opened(site, incarnation, way, number, b"")


def refused(seen: Seen, opened: Opened) -> str:
    with pytest.raises(SealBroken) as caught:
        seen.take(opened)
    return caught.value.fault


def test_an_entry_is_opened_at_its_index_alone():
    coordinator = Seal(SECRET, run=RUN)
    data = coordinator.close_entry(7, CONTENT).encode()
    assert SITE.open_entry(7, data) == CONTENT
    key = derive_key(SECRET, "log", RUN)
    assert data[:64] == hmac.new(key, bytes(7) + b"\x07" + CONTENT, "sha256").hexdigest().encode()
    for index in (0, 6, 8):
        with pytest.raises(SealBroken):
            SITE.open_entry(index, data)
    for other in OTHERS:
        with pytest.raises(SealBroken, match=r"runtime\.secret_file"):
            other.open_entry(7, data)


def test_a_mail_tells_whose_it_is_and_where_it_belongs():
    opened = Seal(SECRET, run=RUN).open_mail(SITE.close_mail(WAY, 5, CONTENT).encode())
    assert opened == Opened(3, 2, WAY, 5, CONTENT)
    own = Seal(SECRET, run=RUN)
    assert own.open_mail(own.close_mail(WAY, 2**63, b"").encode()).site == COORDINATOR
    for other in OTHERS:
        with pytest.raises(SealBroken, match="its seal is none of this run"):
            other.open_mail(SITE.close_mail(WAY, 5, CONTENT).encode())


def test_a_note_is_opened_under_its_name_alone():
    data = SITE.close_note("snapshot", CONTENT).encode()
    assert Seal(SECRET, run=RUN).open_note("snapshot", data) == CONTENT
    for other in OTHERS:
        with pytest.raises(SealBroken):
            other.open_note("snapshot", data)
    for open_ in (
        lambda: SITE.open_note("snapshots", data),
        lambda: SITE.open_note("snapshot", b""),
        lambda: SITE.open_note("snapshot", SITE.close_entry(0, CONTENT).encode()),
        lambda: SITE.open_entry(0, data),
    ):
        with pytest.raises(SealBroken):
            open_()


def test_an_entry_is_no_mail_and_a_mail_no_entry():
    with pytest.raises(SealBroken):
        SITE.open_mail(SITE.close_entry(0, bytes(100)).encode())
    with pytest.raises(SealBroken):
        SITE.open_entry(0, SITE.close_mail(WAY, 0, b"").encode())


def test_every_changed_byte_is_seen_and_so_is_every_missing_one():
    data = SITE.close_mail(WAY, 5, CONTENT).encode()
    entry = SITE.close_entry(5, CONTENT).encode()
    for open_, whole in (
        (SITE.open_mail, data),
        (lambda each: SITE.open_entry(5, each), entry),
    ):
        open_(whole)
        for place in range(len(whole)):
            changed = bytearray(whole)
            changed[place] ^= 1
            for wrong in (bytes(changed), whole[:place], whole[:place] + whole[place + 1 :]):
                with pytest.raises(SealBroken) as caught:
                    open_(wrong)
                assert caught.value.fault == "forged"


def test_random_bytes_are_refused_and_nothing_else_comes_of_them():
    source = random.Random(1)
    for _ in range(2000):
        data = source.randbytes(source.randrange(300))
        for text in (data, data.hex().encode()):
            with pytest.raises(SealBroken):
                SITE.open_mail(text)
            with pytest.raises(SealBroken):
                SITE.open_entry(0, text)


def test_sizes_have_a_limit_at_both_ends():
    most = b"x" * MOST_BYTES
    assert SITE.open_mail(SITE.close_mail(WAY, 1, most).encode()).content == most
    assert SITE.open_entry(1, SITE.close_entry(1, most).encode()) == most
    for close in (lambda data: SITE.close_mail(WAY, 1, data), lambda d: SITE.close_entry(1, d)):
        with pytest.raises(ControlPlaneError, match="too large for the control plane"):
            close(most + b"x")
    for open_ in (SITE.open_mail, lambda data: SITE.open_entry(0, data)):
        with pytest.raises(SealBroken) as caught:
            open_(b"0" * (MOST_BYTES + 200))
        assert caught.value.fault == "oversized"


def test_nothing_arrives_twice_and_each_way_has_an_order_of_its_own():
    seen = Seen()
    for number in (1, 2, 5):
        seen.take(mail(number))
    assert [refused(seen, mail(number)) for number in (1, 2, 4, 5)] == ["replayed"] * 4
    seen.take(mail(1, way=b"another."))
    seen.take(mail(1, site=4))
    seen.take(mail(6))


def test_a_later_process_ends_what_an_earlier_one_says():
    seen = Seen()
    seen.take(mail(9))
    seen.take(mail(1, incarnation=3))
    assert refused(seen, mail(10)) == "outdated"
    assert refused(seen, mail(10, way=b"another.")) == "outdated"
    assert refused(seen, mail(1, incarnation=3)) == "replayed"
    seen.take(mail(1, site=0, incarnation=0))


def test_ways_are_counted():
    seen = Seen()
    for _ in range(MOST_WAYS):
        seen.take(mail(1, way=new_way()))
    assert refused(seen, mail(1, way=new_way())) == "misplaced"
    seen.take(mail(1, incarnation=3, way=new_way()))


def test_the_error_travels():
    error = SealBroken("forged", "why")
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.fault, str(copy)) == ("forged", str(error))
