# SPDX-License-Identifier: Apache-2.0
"""Mappings: shared and writable, private, over replacement and truncation."""
import mmap
import os

import kv
import pytest
import syscalls

DATA = kv.pattern(3 * kv.MiB + 123)
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_POPULATE


@pytest.fixture
def path(any_mount):
    return any_mount.path / "key"


def new_file(path, size):
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    os.ftruncate(fd, size)
    return fd


def test_shared_stores_are_published_with_the_file(path, other):
    fd = new_file(path, len(DATA))
    mapping = syscalls.Mapping(fd, len(DATA))
    mapping.store(0, DATA)
    assert os.pread(fd, len(DATA), 0) == DATA
    mapping.close()
    os.close(fd)
    assert other.kv.get(path) == DATA


def test_stores_after_close_of_the_descriptor_reach_other_processes_after_rename(path, other):
    """LMCache's GDS fallback stores into the mapping when its descriptor is long closed."""
    temporary = f"{path}.tmp"
    fd = new_file(temporary, len(DATA))
    mapping = syscalls.Mapping(fd, len(DATA))
    os.close(fd)
    for at in range(0, len(DATA), 100_000):
        mapping.store(at, DATA[at:at + 100_000])
    mapping.close()
    os.rename(temporary, path)
    assert other.kv.get(path) == DATA


def test_stores_are_seen_by_read_and_writes_by_the_mapping(path):
    fd = new_file(path, 1 << 20)
    mapping = syscalls.Mapping(fd, 1 << 20)
    for n in range(64):
        mapping.store(n * 16_384, bytes([n + 1]) * 8192)
        os.pwrite(fd, bytes([n + 100]) * 8192, n * 16_384 + 8192)
        assert os.pread(fd, 8192, n * 16_384) == bytes([n + 1]) * 8192
    image = mapping.load()
    assert image == b"".join(bytes([n + 1]) * 8192 + bytes([n + 100]) * 8192 for n in range(64))
    mapping.close()
    os.close(fd)


@pytest.mark.parametrize("flags", [PRIVATE, mmap.MAP_PRIVATE, mmap.MAP_SHARED], ids=["populated", "private", "shared"])
def test_mapping_outlives_replacement_and_unlink(path, other, flags):
    kv.put(path, DATA)
    other.kv.hold_mapping(path, flags)
    kv.put(path, b"new")
    assert other.kv.held_bytes(path) == DATA
    os.unlink(path)
    assert other.kv.held_bytes(path) == DATA


@pytest.mark.options(ram_size="16M")
def test_mapped_object_is_not_taken_away_by_eviction(any_mount, path, other):
    kv.put(path, DATA)
    other.kv.hold_mapping(path, mmap.MAP_SHARED)
    for n in range(100):
        kv.put(any_mount.path / f"k{n}", kv.pattern(kv.MiB, n))
    assert other.kv.held_bytes(path) == DATA


def test_mapping_of_a_file_opened_with_o_direct(path):
    kv.put(path, DATA)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    mapping = syscalls.Mapping(fd, len(DATA), mmap.MAP_PRIVATE, mmap.PROT_READ)
    assert mapping.load() == DATA
    mapping.close()
    os.close(fd)


def test_rest_of_the_last_page_reads_as_zeros(path):
    kv.put(path, b"x" * 5000)
    fd = os.open(path, os.O_RDONLY)
    mapping = syscalls.Mapping(fd, 8192, mmap.MAP_SHARED, mmap.PROT_READ)
    assert mapping.load() == b"x" * 5000 + bytes(3192)
    mapping.close()
    os.close(fd)


def test_private_stores_stay_private(path):
    kv.put(path, DATA)
    fd = os.open(path, os.O_RDONLY)
    mapping = syscalls.Mapping(fd, len(DATA), mmap.MAP_PRIVATE)
    mapping.store(0, b"mine")
    assert os.pread(fd, 4, 0) == DATA[:4]
    mapping.close()
    os.close(fd)
    assert kv.get(path) == DATA


def test_stores_into_an_existing_object_are_a_private_copy_until_unmapped(path, other):
    kv.put(path, DATA)
    fd = os.open(path, os.O_RDWR)
    mapping = syscalls.Mapping(fd, len(DATA))
    os.close(fd)
    mapping.store(1000, b"changed")
    assert other.kv.get(path) == DATA
    mapping.close()
    want = DATA[:1000] + b"changed" + DATA[1007:]
    kv.eventually(lambda: other.kv.get(path) == want, what="the change is published")


def test_stores_move_mtime(path):
    kv.put(path, DATA)
    os.utime(path, ns=(10**18, 10**18))
    fd = os.open(path, os.O_RDWR)
    mapping = syscalls.Mapping(fd, len(DATA))
    mapping.store(0, b"changed")
    mapping.close()
    os.close(fd)
    kv.eventually(lambda: os.stat(path).st_mtime_ns > 10**18, what="mtime has moved")


def test_msync_succeeds_and_stores_survive_restart(any_mount, path):
    """marconi writes through a shared mapping only, and expects its bytes after a restart."""
    fd = new_file(path, len(DATA))
    mapping = mmap.mmap(fd, len(DATA))
    mapping[:] = DATA
    mapping.flush()
    mapping.close()
    os.close(fd)
    kv.eventually(lambda: kv.attribute(path, "status") == "COMPLETE", what="the key is published")
    any_mount.restart("kill9")
    assert kv.get(path) == DATA


@pytest.mark.concurrency
def test_many_mappings_are_faulted_in_at_once(any_mount, spawn):
    """64 files, mapped and read by 8 processes at once: no dead-lock."""
    paths = [any_mount.path / f"k{n}" for n in range(64)]
    for n, path in enumerate(paths):
        kv.put(path, kv.pattern(256 * 1024, n))
    readers = [spawn() for _ in range(8)]
    for reader in readers:
        reader.begin("kv.map_all", paths)
    want = sum(sum(kv.pattern(256 * 1024, n)[::4096]) for n in range(64))
    assert [reader.result() for reader in readers] == [want] * 8
