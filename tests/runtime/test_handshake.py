from __future__ import annotations

import hmac
import pickle
import random
import struct

import pytest

from powertrip.runtime import handshake
from powertrip.runtime.handshake import (
    ANSWER_BYTES,
    BEAT_BYTES,
    CHALLENGE_BYTES,
    HELLO_BYTES,
    RUN_BYTES,
    Applicant,
    Challenger,
    NotAdmitted,
    Refused,
    Verdict,
    presence_key,
    refusal,
)

SECRET = b"sixteen bytes or more"
KEY = presence_key(SECRET)
RUN = bytes(range(RUN_BYTES))


def shaken(key: bytes = KEY, site: int = 3, incarnation: int = 2):
    challenger, applicant = Challenger(KEY), Applicant(key, site, incarnation)
    hello = applicant.hello(challenger.challenge)
    return challenger, applicant, hello


def flipped(data: bytes, place: int) -> bytes:
    changed = bytearray(data)
    changed[place] ^= 1
    return bytes(changed)


def test_both_ends_know_each_other_and_the_same_beats_afterwards():
    challenger, applicant, hello = shaken()
    claim = challenger.check(hello)
    assert (claim.site, claim.incarnation) == (3, 2)
    answer, sent, heard = challenger.welcome(17, RUN)
    lengths = [len(each) for each in (challenger.challenge, hello, answer)]
    assert lengths == [CHALLENGE_BYTES, HELLO_BYTES, ANSWER_BYTES]
    welcome = applicant.welcomed(answer)
    assert (welcome.granted, welcome.run) == (17, RUN)
    coordinators = [sent.next() for _ in range(5)]
    assert [welcome.heard.next() for _ in range(5)] == coordinators
    sites = [welcome.sent.next() for _ in range(5)]
    assert [heard.next() for _ in range(5)] == sites
    assert len({*coordinators, *sites}) == 10
    assert {len(beat) for beat in coordinators} == {BEAT_BYTES}


def test_the_proof_of_a_site_is_the_hmac_that_is_described():
    challenger, _, hello = shaken()
    nonce, own = challenger.challenge[-32:], hello[14:46]
    extracted = hmac.new(b"powertrip", SECRET, "sha256").digest()
    key = hmac.new(extracted, b"\x00\x08presence\x01", "sha256").digest()
    text = struct.pack("!HII", 1, 3, 2) + nonce + own + bytes(8) + bytes(32) + b"site"
    assert hello[46:] == hmac.new(key, text, "sha256").digest()


def test_without_the_secret_nobody_is_admitted():
    for other in (b"", b"another secret of length"):
        challenger, _, hello = shaken(presence_key(other))
        with pytest.raises(Refused) as caught:
            challenger.check(hello)
        assert caught.value.verdict is Verdict.SECRET


def test_a_hello_that_was_heard_cannot_be_played_again():
    _, _, hello = shaken()
    with pytest.raises(Refused) as caught:
        Challenger(KEY).check(hello)
    assert caught.value.verdict is Verdict.SECRET


def test_the_proof_of_one_site_or_process_is_none_of_another():
    challenger, _, hello = shaken()
    for place in (6, 9, 10, 13):  # the site's number and its incarnation
        with pytest.raises(Refused) as caught:
            challenger.check(flipped(hello, place))
        assert caught.value.verdict is Verdict.SECRET
    # Its own proof does not make the coordinator either.
    challenger, applicant, hello = shaken()
    forged = handshake._ANSWER.pack(b"PTpr", 1, 0, 0, bytes(RUN_BYTES), hello[-32:])
    with pytest.raises(NotAdmitted, match=r"runtime\.secret_file"):
        applicant.welcomed(forged)


def test_every_changed_bit_of_a_hello_is_seen():
    challenger, _, hello = shaken()
    for place in range(HELLO_BYTES):
        with pytest.raises(Refused):
            challenger.check(flipped(hello, place))
    challenger.check(hello)


def test_every_changed_bit_of_an_answer_is_seen():
    challenger, applicant, hello = shaken()
    challenger.check(hello)
    answer, *_ = challenger.welcome(5, RUN)
    for place in range(ANSWER_BYTES):
        with pytest.raises(NotAdmitted):
            applicant.welcomed(flipped(answer, place))
    applicant.welcomed(answer)


@pytest.mark.parametrize("verdict", [each for each in Verdict if each != Verdict.ADMITTED])
def test_a_refusal_says_what_to_do(verdict):
    _, applicant, _ = shaken()
    with pytest.raises(NotAdmitted, match="site 3 is not admitted by the coordinator: ") as caught:
        applicant.welcomed(refusal(verdict))
    assert caught.value.verdict is verdict
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_another_program_or_version_at_the_other_end_is_told():
    challenger, applicant, hello = shaken()
    with pytest.raises(NotAdmitted, match="another program"):
        applicant.hello(b"HTTP".ljust(CHALLENGE_BYTES, b"x"))
    with pytest.raises(NotAdmitted, match="the same PowerTrip"):
        applicant.hello(flipped(challenger.challenge, 5))
    with pytest.raises(Refused, match="another version"):
        challenger.check(flipped(hello, 5))


def test_random_and_truncated_bytes_are_refused_and_nothing_else():
    source = random.Random(5)
    challenger, applicant, hello = shaken()
    challenge = challenger.challenge
    for _ in range(2000):
        with pytest.raises(Refused):
            challenger.check(source.randbytes(source.randrange(2 * HELLO_BYTES)))
        with pytest.raises(Refused):
            challenger.check(hello[: source.randrange(HELLO_BYTES)])
        with pytest.raises(Refused):
            challenger.check(hello[:6] + source.randbytes(HELLO_BYTES - 6))
        with pytest.raises(NotAdmitted):
            applicant.hello(source.randbytes(CHALLENGE_BYTES))
        with pytest.raises(NotAdmitted):
            applicant.welcomed(challenge[:6] + source.randbytes(ANSWER_BYTES - 6))


def test_a_site_that_can_never_be_admitted_is_not_started_again():
    told = [verdict for verdict in Verdict if verdict != Verdict.ADMITTED]
    lasting = {verdict for verdict in told if NotAdmitted(0, verdict).exit_code == 2}
    assert lasting == {Verdict.VERSION, Verdict.SECRET, Verdict.SITE}
