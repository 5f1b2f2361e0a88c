"""What it costs to send updates as whole numbers: bytes on the links, and seconds of packing."""

from __future__ import annotations

from typing import Literal

Codec = Literal["none", "int8"]

BLOCK = 1024
"""Numbers that share a scale."""

_FLOAT_BYTES = 4
_PACK_BYTES_PER_S = 6.7e9  # of float32, on one core, in place and in chunks
_UNPACK_BYTES_PER_S = 13.4e9


def packed_bytes(codec: Codec, float_bytes: int) -> int:
    """Return the size of an update as it travels.

    Parameters
    ----------
    codec
        Whether it is packed.
    float_bytes
        Its size in float32, with the weight behind it.
    """
    if codec == "none":
        return float_bytes
    numbers = -(-float_bytes // _FLOAT_BYTES)
    return numbers + _FLOAT_BYTES * -(-numbers // BLOCK)


def packing_s(codec: Codec, float_bytes: int) -> float:
    """Return the seconds that an exchange takes longer for packing and unpacking at both ends.

    The members' updates are packed and unpacked on their way to where they are added up, and their
    mean is once more on its way back, in a star, a ring and a mesh alike.
    """
    if codec == "none":
        return 0.0
    return 2 * (float_bytes / _PACK_BYTES_PER_S + float_bytes / _UNPACK_BYTES_PER_S)
