from __future__ import annotations

import hashlib
import hmac
import os

import pytest

from powertrip.config import dump_config, load_config
from powertrip.coordination.setup import Setup
from powertrip.runtime.secret import SecretUnusable, derive_key, load_secret

SECRET = "correct horse battery staple"
ENVIRONMENT = {"POWERTRIP_SECRET": SECRET}


@pytest.fixture
def named(tmp_path):
    """Makes a file with a secret, and settings that name it."""

    def named(content: bytes, mode: int = 0o600):
        path = tmp_path / "secret"
        path.write_bytes(content)
        path.chmod(mode)
        return load_config(None, ["runtime.secret_file=secret"])

    return named


def test_the_secret_comes_from_the_file_else_from_the_environment_else_there_is_none(
    tmp_path, named
):
    config = named(b"  from a file, not the other\n")
    assert load_secret(config, tmp_path, ENVIRONMENT) == b"from a file, not the other"
    assert load_secret(load_config(), tmp_path, ENVIRONMENT) == SECRET.encode()
    assert load_secret(load_config(), tmp_path, {}) == b""


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o622])
def test_a_file_that_others_may_read_is_refused(tmp_path, named, mode):
    with pytest.raises(SecretUnusable, match=r"chmod 600 .*/secret") as caught:
        load_secret(named(SECRET.encode(), mode), tmp_path, {})
    assert SECRET not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("content", [b"", b"short", b"fifteen bytes!!", b"fifteen bytes!!  \n"])
def test_a_short_secret_is_refused(tmp_path, named, content):
    with pytest.raises(SecretUnusable, match=r"runtime\.secret_file: .* fewer than 16 bytes"):
        load_secret(named(content), tmp_path, {})
    with pytest.raises(SecretUnusable, match=r"POWERTRIP_SECRET: .* fewer than 16 bytes"):
        load_secret(load_config(), tmp_path, {"POWERTRIP_SECRET": content.decode()})


def test_a_file_that_is_too_large_is_not_read_to_its_end(tmp_path, named):
    with pytest.raises(SecretUnusable, match="more than 4096 bytes"):
        load_secret(named(b"x" * 10_000), tmp_path, {})


def test_what_is_no_file_is_refused(tmp_path):
    config = load_config(None, ["runtime.secret_file=secret"])
    with pytest.raises(SecretUnusable, match="No such file"):
        load_secret(config, tmp_path, ENVIRONMENT)
    (tmp_path / "secret").mkdir()
    with pytest.raises(SecretUnusable, match="Is a directory"):
        load_secret(config, tmp_path, ENVIRONMENT)
    (tmp_path / "secret").rmdir()
    os.mkfifo(tmp_path / "secret")
    with pytest.raises(SecretUnusable, match="no regular file"):
        load_secret(config, tmp_path, ENVIRONMENT)


def test_the_secret_is_in_nothing_that_is_written_or_handed_over(tmp_path, named, monkeypatch):
    monkeypatch.setenv("POWERTRIP_SECRET", SECRET)
    config = named(SECRET.encode())
    assert load_secret(config, tmp_path) == SECRET.encode()
    assert SECRET not in dump_config(config)
    assert SECRET.encode() not in Setup(config, tmp_path).encode()


def hkdf(secret: bytes, info: bytes) -> bytes:
    """RFC 5869, as it is written there, for 32 bytes."""
    key = hmac.new(b"powertrip", secret, hashlib.sha256).digest()
    return hmac.new(key, b"" + info + bytes([1]), hashlib.sha256).digest()


def test_keys_are_those_of_the_rfc_and_differ_by_purpose_and_context():
    assert derive_key(b"s", "mail", b"run") == hkdf(b"s", b"\x00\x04mailrun")
    keys = {
        derive_key(secret, purpose, context)
        for secret in (b"", b"s")
        for purpose, context in (("mail", b"run"), ("mailr", b"un"), ("mail", b""), ("log", b"run"))
    }
    assert len(keys) == 8
