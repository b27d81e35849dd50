# SPDX-License-Identifier: Apache-2.0
"""content - bytes that say what they are: a function of name, version and size, with header and trailer.

Whatever is torn, short, shifted, stale or somebody else's does not compare equal to what its own header promises.
"""
import random
import struct

HEADER = struct.Struct("<8sQQ40s")
MAGIC = b"kvstress"
SMALLEST = 2 * HEADER.size


class Wrong(Exception):
    """Bytes that no writer ever published."""


def build(name, version, size):
    assert size >= SMALLEST
    header = HEADER.pack(MAGIC, version, size, name.encode())
    block = random.Random(f"{name}/{version}").randbytes(4097)
    body = size - SMALLEST
    return header + (block * (body // len(block) + 1))[:body] + header


def check(data, name):
    """The version of these bytes; Wrong when they are not exactly one version of this name."""
    data = bytes(data)
    if len(data) < SMALLEST:
        raise Wrong(f"{name}: {len(data)} bytes")
    magic, version, size, owner = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise Wrong(f"{name}: begins with {data[:16]!r}")
    if owner.rstrip(b"\0") != name.encode():
        raise Wrong(f"{name}: holds {owner!r}")
    if size != len(data):
        raise Wrong(f"{name} version {version}: {len(data)} of {size} bytes")
    if data != build(name, version, size):
        raise Wrong(f"{name} version {version}: torn at {_first_difference(data, build(name, version, size))} of {size}")
    return version


def _first_difference(one, two):
    return next(at for at, (a, b) in enumerate(zip(one, two, strict=True)) if a != b)
