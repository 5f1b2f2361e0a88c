"""How a site and the coordinator make sure of each other, and know each other's beats afterwards.

Three messages of fixed length::

    coordinator   challenge   its nonce
    site          hello       who it is, its nonce, its proof
    coordinator   answer      admitted: the log entry to begin with, the run's number, its proof
                              refused: why

A proof is an HMAC-SHA256 over both nonces, the protocol's version, the site and its incarnation,
and who proves; the coordinator's covers what it grants as well. The site proves first: whoever
merely connects to the coordinator learns nothing that the secret could be guessed from. Beats are
HMACs over their count under a key of the connection's own, so none can be forged, left out or
played again.
"""

from __future__ import annotations

import hmac
import os
import struct
from dataclasses import dataclass
from enum import IntEnum

from powertrip.errors import InputError, PowerTripError
from powertrip.runtime.secret import derive_key

VERSION = 1
NONCE_BYTES = 32
BEAT_BYTES = 16
RUN_BYTES = 32

_MAGIC = b"PTpr"
_CHALLENGE = struct.Struct(f"!4sH{NONCE_BYTES}s")
_HELLO = struct.Struct(f"!4sHII{NONCE_BYTES}s32s")
_ANSWER = struct.Struct(f"!4sHBQ{RUN_BYTES}s32s")
CHALLENGE_BYTES, HELLO_BYTES, ANSWER_BYTES = _CHALLENGE.size, _HELLO.size, _ANSWER.size


class Verdict(IntEnum):
    """What the coordinator says to a hello."""

    ADMITTED = 0
    GARBAGE = 1
    VERSION = 2
    SECRET = 3
    SITE = 4
    INCARNATION = 5
    BUSY = 6
    SLOW = 7


REASONS = {
    Verdict.GARBAGE: "it does not speak the protocol",
    Verdict.VERSION: "it speaks another version of the protocol",
    Verdict.SECRET: "it does not know the secret",
    Verdict.SITE: "there is no site with its number",
    Verdict.INCARNATION: "a later process of the same site has been admitted",
    Verdict.BUSY: "too many connections are waiting to be admitted",
    Verdict.SLOW: "it took too long to say who it is",
}
"""Why a connection is refused, as the coordinator says it."""

_ADVICE = {
    Verdict.GARBAGE: "another program may listen there",
    Verdict.VERSION: "install the same PowerTrip for all processes of a job",
    Verdict.SECRET: "give all processes the same runtime.secret_file or POWERTRIP_SECRET",
    Verdict.SITE: "give all processes the same scenario",
    Verdict.INCARNATION: "a later process of this site is at work; this one is to end",
    Verdict.BUSY: "too many connections to it are open; try again later",
    Verdict.SLOW: "the link to it is too slow; try again later",
}

PASSING = frozenset({Verdict.BUSY, Verdict.SLOW})
"""Refusals after which another attempt may succeed."""

_LASTING = frozenset({Verdict.VERSION, Verdict.SECRET, Verdict.SITE})
# Refusals of every process of the same site; its supervisor starts no other one.


class Refused(PowerTripError):
    """The coordinator does not admit what has connected to it."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict
        super().__init__(REASONS[verdict])

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.verdict,)


class NotAdmitted(PowerTripError):
    """The coordinator has refused this site, or is none that this site may trust."""

    def __init__(self, site: int, verdict: Verdict) -> None:
        self.site, self.verdict = site, verdict
        if verdict in _LASTING:
            self.exit_code = InputError.exit_code
        super().__init__(f"site {site} is not admitted by the coordinator: {_ADVICE[verdict]}")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.site, self.verdict)


class Beats:
    """The beats of one end of a connection, in order; both ends can tell them."""

    def __init__(self, key: bytes, speaker: bytes) -> None:
        self._key, self._speaker, self._count = key, speaker, 0

    def next(self) -> bytes:
        """The next beat, of `BEAT_BYTES`."""
        self._count += 1
        return hmac.digest(self._key, self._speaker + struct.pack("!Q", self._count), "sha256")[
            :BEAT_BYTES
        ]


@dataclass(frozen=True)
class Claim:
    """What a site has proved to be.

    Attributes
    ----------
    site, incarnation
        Which process it is.
    """

    site: int
    incarnation: int


class Challenger:
    """The coordinator's end of one handshake.

    Parameters
    ----------
    key
        `presence_key` of the secret.

    Attributes
    ----------
    challenge
        What to send first.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._nonce = os.urandom(NONCE_BYTES)
        self.challenge = _CHALLENGE.pack(_MAGIC, VERSION, self._nonce)

    def check(self, hello: bytes) -> Claim:
        """See whether a site knows the secret.

        Raises
        ------
        Refused
            It does not, or these are not `HELLO_BYTES` of this protocol.
        """
        if len(hello) != HELLO_BYTES:
            raise Refused(Verdict.GARBAGE)
        magic, version, site, incarnation, nonce, proof = _HELLO.unpack(hello)
        if magic != _MAGIC:
            raise Refused(Verdict.GARBAGE)
        if version != VERSION:
            raise Refused(Verdict.VERSION)
        self._transcript = _transcript(self._nonce, nonce, site, incarnation)
        if not hmac.compare_digest(proof, _proof(self._key, b"site", self._transcript)):
            raise Refused(Verdict.SECRET)
        return Claim(site, incarnation)

    def welcome(self, granted: int, run: bytes) -> tuple[bytes, Beats, Beats]:
        """The answer to a site that has passed `check`, the beats to send and those to come."""
        proof = _proof(self._key, b"coordinator", self._transcript, granted, run)
        answer = _ANSWER.pack(_MAGIC, VERSION, Verdict.ADMITTED, granted, run, proof)
        key = _beat_key(self._key, self._transcript)
        return answer, Beats(key, b"coordinator"), Beats(key, b"site")


def refusal(verdict: Verdict) -> bytes:
    """The answer that says why a site is not admitted."""
    return _ANSWER.pack(_MAGIC, VERSION, verdict, 0, bytes(RUN_BYTES), bytes(32))


@dataclass(frozen=True)
class Welcome:
    """What an admitted site has been told.

    Attributes
    ----------
    granted
        Index of the log entry to begin with.
    run
        The run's number, which the keys for its messages are bound to.
    sent, heard
        The beats to send, and those to come.
    """

    granted: int
    run: bytes
    sent: Beats
    heard: Beats


class Applicant:
    """The site's end of one handshake.

    Parameters
    ----------
    key
        `presence_key` of the secret.
    site, incarnation
        Which process it is.
    """

    def __init__(self, key: bytes, site: int, incarnation: int) -> None:
        self._key, self._site, self._incarnation = key, site, incarnation
        self._nonce = os.urandom(NONCE_BYTES)

    def hello(self, challenge: bytes) -> bytes:
        """The answer to the coordinator's challenge.

        Raises
        ------
        NotAdmitted
            These are not `CHALLENGE_BYTES` of this protocol.
        """
        magic, version, nonce = _CHALLENGE.unpack(challenge)
        self._see(magic, version)
        self._transcript = _transcript(nonce, self._nonce, self._site, self._incarnation)
        return _HELLO.pack(
            _MAGIC,
            VERSION,
            self._site,
            self._incarnation,
            self._nonce,
            _proof(self._key, b"site", self._transcript),
        )

    def _see(self, magic: bytes, version: int) -> None:
        if magic != _MAGIC:
            raise NotAdmitted(self._site, Verdict.GARBAGE)
        if version != VERSION:
            raise NotAdmitted(self._site, Verdict.VERSION)

    def welcomed(self, answer: bytes) -> Welcome:
        """Read the coordinator's answer to the hello.

        Raises
        ------
        NotAdmitted
            It refuses this site, does not know the secret itself, or these are not `ANSWER_BYTES`
            of this protocol.
        """
        magic, version, verdict, granted, run, proof = _ANSWER.unpack(answer)
        self._see(magic, version)
        if verdict != Verdict.ADMITTED:
            known = verdict in Verdict._value2member_map_
            raise NotAdmitted(self._site, Verdict(verdict) if known else Verdict.GARBAGE)
        expected = _proof(self._key, b"coordinator", self._transcript, granted, run)
        if not hmac.compare_digest(proof, expected):
            raise NotAdmitted(self._site, Verdict.SECRET)
        key = _beat_key(self._key, self._transcript)
        return Welcome(granted, run, Beats(key, b"site"), Beats(key, b"coordinator"))


def presence_key(secret: bytes) -> bytes:
    """The key for proofs."""
    return derive_key(secret, "presence")


def _transcript(coordinators: bytes, sites: bytes, site: int, incarnation: int) -> bytes:
    return struct.pack("!HII", VERSION, site, incarnation) + coordinators + sites


def _proof(
    key: bytes, prover: bytes, transcript: bytes, granted: int = 0, run: bytes = bytes(RUN_BYTES)
) -> bytes:
    # All parts but the prover's name are of fixed length, and no name is the end of another.
    return hmac.digest(key, transcript + struct.pack("!Q", granted) + run + prover, "sha256")


def _beat_key(key: bytes, transcript: bytes) -> bytes:
    return derive_key(key, "beats", transcript)
