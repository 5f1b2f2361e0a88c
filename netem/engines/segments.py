"""IPv4 packets as a TUN device with `VNET_HDR` hands them over: large ones not yet cut to size.

With segmentation offload a read yields up to 64 KiB of one TCP flow, preceded by a
`struct virtio_net_hdr` (<linux/virtio_net.h>) that says into which segments it is to be cut. Moving
it whole saves most of the work, but a link loses single segments and carries the headers of each.
"""

from __future__ import annotations

import struct

HEADER_BYTES = 10
"""Length of the `virtio_net_hdr` before each packet."""
FRAME_BYTES = HEADER_BYTES + 65_535
"""Largest frame: the header and the longest IP packet."""
DESTINATION = slice(HEADER_BYTES + 16, HEADER_BYTES + 20)
"""Where a frame holds the IPv4 destination address."""

_VNET = struct.Struct("=BBHHHH")
_SIZES = struct.Struct("=HH")
_IP_LENGTH_ID = struct.Struct("!HH")
_WORD = struct.Struct("!H")
_LONG = struct.Struct("!I")
_FIN_PSH = 0x09
_CWR = 0x80


def measure(frame: bytes) -> tuple[int, int]:
    """Return the IP bytes and the number of packets that a frame is on a real wire."""
    if not frame[1]:
        return len(frame) - HEADER_BYTES, 1
    headers, segment_bytes = _layout(frame)
    count = -(-(len(frame) - HEADER_BYTES - headers) // segment_bytes)
    return len(frame) - HEADER_BYTES + (count - 1) * headers, count


def extract(frame: bytes, first: int, count: int) -> bytes:
    """Return the frame of the segments `first` to `first + count - 1` of a frame of several.

    The sequence number, the IP length, id and checksum, and the sum over the pseudo header that the
    receiving kernel starts from are those that the sender's kernel would have written.
    """
    headers, segment_bytes = _layout(frame)
    start = first * segment_bytes
    payload = memoryview(frame)[HEADER_BYTES + headers :]
    part = payload[start : start + count * segment_bytes]
    out = bytearray(frame[: HEADER_BYTES + headers])
    out += part
    flags, kind, header_length, size, tcp, checksum = _VNET.unpack_from(frame)
    if len(part) <= segment_bytes:
        kind = size = 0
    _VNET.pack_into(out, 0, flags, kind, header_length, size, tcp, checksum)

    ip = HEADER_BYTES
    identity = _IP_LENGTH_ID.unpack_from(out, ip + 2)[1]
    _IP_LENGTH_ID.pack_into(out, ip + 2, headers + len(part), (identity + first) & 0xFFFF)
    _WORD.pack_into(out, ip + 10, 0)
    _WORD.pack_into(out, ip + 10, 0xFFFF ^ _folded_sum(out[ip : ip + tcp]))

    segment = ip + tcp
    sequence = _LONG.unpack_from(out, segment + 4)[0]
    _LONG.pack_into(out, segment + 4, (sequence + start) & 0xFFFFFFFF)
    if first:
        out[segment + 13] &= ~_CWR & 0xFF
    if start + len(part) < len(payload):
        out[segment + 13] &= ~_FIN_PSH & 0xFF
    pseudo = out[ip + 12 : ip + 20] + bytes((0, out[ip + 9]))
    pseudo += _WORD.pack(headers - tcp + len(part))
    _WORD.pack_into(out, segment + checksum, _folded_sum(pseudo))
    return bytes(out)


def _layout(frame: bytes) -> tuple[int, int]:
    """Return the bytes of IP and TCP headers, and the payload bytes of a segment."""
    segment_bytes, tcp = _SIZES.unpack_from(frame, 4)
    return tcp + (frame[HEADER_BYTES + tcp + 12] >> 4) * 4, segment_bytes


def _folded_sum(data: bytes | bytearray) -> int:
    """Sum 16-bit words in ones' complement (RFC 1071), not inverted."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total
