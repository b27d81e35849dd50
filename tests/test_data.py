# SPDX-License-Identifier: Apache-2.0
"""Reading and writing: whole objects in one call, O_DIRECT, vectors, sparse files, allocation. Over both transports."""
import errno
import fcntl
import os
import random

import kv
import pytest
import syscalls

NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL
MiB = kv.MiB


@pytest.fixture
def path(any_mount):
    return any_mount.path / "key"


@pytest.mark.options(ram_size="512M")
@pytest.mark.parametrize("size", [0, 1, 511, 4095, 4096, 4097, 131_072, MiB, MiB + 1, 4 * MiB, 16 * MiB, 64 * MiB + 4097])
def test_object_of_this_size_goes_in_and_out_by_one_call(path, other, size):
    data = kv.pattern(size)
    kv.put(path, data)
    found = os.stat(path)
    assert found.st_size == size
    assert other.os.stat(path).st_size == size
    assert kv.get(path) == data


@pytest.mark.options(ram_size="512M")
@pytest.mark.parametrize("size", [MiB, 64 * MiB])
def test_vector_calls_take_and_give_everything(path, size):
    data = kv.pattern(size)
    pieces = [data[i:i + size // 1024] for i in range(0, size, size // 1024)]
    assert len(pieces) == 1024
    fd = os.open(path, NEW, 0o644)
    assert os.pwritev(fd, pieces, 0) == size
    os.close(fd)
    fd = os.open(path, os.O_RDONLY)
    for read in (lambda b: os.readv(fd, b), lambda b: os.preadv(fd, b, 0)):
        buffers = [bytearray(size // 1024) for _ in range(1024)]
        assert read(buffers) == size
        assert b"".join(buffers) == data
    os.close(fd)


def test_small_header_read_is_followed_by_a_large_one(path):
    data = kv.pattern(28 + 16 * MiB)
    kv.put(path, data)
    fd = os.open(path, os.O_RDONLY)
    assert os.read(fd, 28) == data[:28]
    assert os.read(fd, 16 * MiB) == data[28:]
    assert os.read(fd, 100) == b""
    assert os.lseek(fd, -1000, os.SEEK_END) == len(data) - 1000
    assert os.read(fd, 4096) == data[-1000:]
    os.close(fd)


@pytest.mark.parametrize("offset, length, want", [
    (0, 10, b"0123456789"), (5, 10, b"56789"), (9, 1, b"9"), (10, 1, b""), (11, 10, b""), (1 << 40, 10, b"")])
def test_read_near_the_end_gives_what_is_there(path, offset, length, want):
    kv.put(path, b"0123456789")
    fd = os.open(path, os.O_RDONLY)
    assert os.pread(fd, length, offset) == want
    os.close(fd)


def test_random_writes_give_the_same_as_in_memory(path, other):
    rng, size = random.Random(7), 3 * MiB
    model = bytearray(size)
    fd = os.open(path, NEW, 0o644)
    for _ in range(300):
        at, data = rng.randrange(size), rng.randbytes(rng.randrange(1, 70_000))
        data = data[:size - at]
        assert os.pwrite(fd, data, at) == len(data)
        model[at:at + len(data)] = data
    model = bytes(model[:os.fstat(fd).st_size])
    assert os.pread(fd, size, 0) == model
    os.close(fd)
    assert other.kv.get(path) == model


def test_hole_before_the_first_write_reads_as_zeros(path, other):
    fd = os.open(path, NEW, 0o644)
    os.pwrite(fd, b"end", 100_000)
    os.close(fd)
    assert other.kv.get(path) == bytes(100_000) + b"end"


def test_extending_after_shrinking_gives_zeros(path):
    kv.put(path, b"\xff" * 10_000)
    fd = os.open(path, os.O_RDWR)
    os.ftruncate(fd, 100)
    os.ftruncate(fd, 9000)
    assert os.pread(fd, 10_000, 0) == b"\xff" * 100 + bytes(8900)
    os.close(fd)


# ---- O_DIRECT

@pytest.mark.parametrize("size", [512, 4096, 3 * 512, 65_536, 2 * MiB, 16 * MiB])
def test_direct_write_and_read(path, other, size):
    data = kv.pattern(size)
    fd = os.open(path, NEW | os.O_DIRECT, 0o644)
    assert os.write(fd, syscalls.aligned(data)) == size
    os.close(fd)
    assert other.kv.get(path) == data
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    buffer = syscalls.aligned(bytes(size))
    assert os.readv(fd, [buffer]) == size
    assert bytes(buffer) == data
    os.close(fd)


@pytest.mark.parametrize("size", [1, 1000, 4097, 2 * MiB + 333])
def test_direct_read_of_an_odd_size_ends_at_the_end(path, size):
    data = kv.pattern(size)
    kv.put(path, data)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    room = (size + 4095) // 4096 * 4096
    buffer = syscalls.aligned(bytes(room))
    assert os.preadv(fd, [buffer], 0) == size
    assert bytes(buffer[:size]) == data
    os.close(fd)


def test_misaligned_direct_write_works_or_is_einval_at_once(path):
    fd = os.open(path, NEW | os.O_DIRECT, 0o644)
    data = syscalls.aligned(kv.pattern(5000))
    try:
        assert os.pwrite(fd, data[1:4778], 3) == 4777
        assert os.pread(fd, 4777, 3) == bytes(data[1:4778])
    except OSError as error:
        assert error.errno == errno.EINVAL
    os.close(fd)


def test_o_direct_is_switched_on_and_off_by_fcntl(path, other):
    fd = os.open(path, NEW, 0o600)
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
    assert os.pwrite(fd, syscalls.aligned(b"d" * 8192), 0) == 8192
    fcntl.fcntl(fd, fcntl.F_SETFL, flags)
    assert os.pwrite(fd, b"buffered", 8192) == 8
    os.close(fd)
    assert other.kv.get(path) == b"d" * 8192 + b"buffered"


def test_buffered_and_direct_descriptors_see_each_other(path):
    buffered = os.open(path, NEW, 0o644)
    os.ftruncate(buffered, MiB)
    direct = os.open(path, os.O_RDWR | os.O_DIRECT)
    buffer = syscalls.aligned(bytes(4096))
    for turn in range(20):
        at = turn * 8192
        os.pwrite(buffered, bytes([turn]) * 4096, at)
        assert os.preadv(direct, [buffer], at) == 4096 and bytes(buffer) == bytes([turn]) * 4096
        os.pwrite(direct, syscalls.aligned(bytes([turn + 100]) * 4096), at + 4096)
        assert os.pread(buffered, 4096, at + 4096) == bytes([turn + 100]) * 4096
    os.close(direct)
    os.close(buffered)


# ---- sparse files

def write_here_and_there(fds, count):
    """Pages at random offsets of a terabyte, each by one of the descriptors: what was written, by offset."""
    os.ftruncate(fds[0], 1 << 40)
    rng, written = random.Random(1), {}
    for n in range(count):
        at = rng.randrange(1 << 28) * 4096
        written[at] = rng.randbytes(4096)
        assert os.pwrite(fds[n % len(fds)], written[at], at) == 4096
    return written


@pytest.mark.parametrize("huge, page", [("within_size", 2 * MiB), ("never", 4096)])
@pytest.mark.parametrize("passthrough", ["on", "off"])
def test_sparse_terabyte_file_is_charged_for_the_pages_it_has(launch, other, passthrough, huge, page):
    mount = launch(passthrough=passthrough, huge=huge)
    path, free = mount.path / "file", mount.free_bytes()
    fds = [os.open(path, os.O_RDWR | os.O_CREAT, 0o644) for _ in range(4)]
    written = write_here_and_there(fds, 50)
    for at, data in written.items():
        assert os.pread(fds[at // 4096 % 4], 4096, at) == data
    assert os.fstat(fds[0]).st_size == 1 << 40
    for fd in fds:
        os.close(fd)
    found = other.os.stat(path)
    assert found.st_size == 1 << 40
    assert 4096 * len(written) <= found.st_blocks * 512 <= page * len(written)
    assert free - mount.free_bytes() == found.st_blocks * 512
    reader = os.open(path, os.O_RDONLY)
    for at, data in written.items():
        assert os.pread(reader, 4096, at) == data
    os.close(reader)
    os.unlink(path)
    kv.eventually(lambda: mount.free_bytes() >= free, what="the last close frees the bytes")


@pytest.mark.parametrize("publish", ["close", "open"])
@pytest.mark.options(ram_size="64M")
def test_sparse_file_ends_with_enospc_before_the_hard_limit(any_mount, publish):
    """The budget, an eighth of it and 128 MiB: no write comes by the daemon that could stop it earlier."""
    directory = any_mount.mkdir("slabs", publish=publish, evict="off")
    found = os.statvfs(any_mount.memory)
    limit = found.f_blocks * found.f_frsize
    assert limit <= (64 + 8 + 128) * MiB
    fd = os.open(directory / "slab", os.O_RDWR | os.O_CREAT, 0o644)
    with kv.fails(errno.ENOSPC):
        write_here_and_there([fd], 1000)
    assert os.fstat(fd).st_blocks * 512 <= limit
    assert any_mount.free_bytes() == 0
    with kv.fails(errno.ENOSPC):
        kv.put(any_mount.path / "key", kv.pattern(MiB))
    os.unlink(directory / "slab")
    os.close(fd)
    kv.eventually(lambda: any_mount.free_bytes() == 64 * MiB, what="the bytes are free")
    kv.put(any_mount.path / "key", kv.pattern(MiB))


def test_seek_data_and_hole_are_right_or_all_data(path):
    fd = os.open(path, NEW, 0o644)
    os.ftruncate(fd, 64 * MiB)
    os.pwrite(fd, b"x" * 4096, 16 * MiB)
    data, hole = os.lseek(fd, 0, os.SEEK_DATA), os.lseek(fd, 0, os.SEEK_HOLE)
    assert (data, hole) in ((16 * MiB, 0), (0, 64 * MiB))
    if hole == 0:
        assert 16 * MiB + 4096 <= os.lseek(fd, 16 * MiB, os.SEEK_HOLE) <= 18 * MiB
    with kv.fails(errno.ENXIO):
        os.lseek(fd, 64 * MiB, os.SEEK_DATA)
    os.close(fd)


# ---- allocation

def test_posix_fallocate_reserves_and_extends(any_mount, path, other):
    free = any_mount.free_bytes()
    fd = os.open(path, NEW, 0o644)
    os.posix_fallocate(fd, 0, 8 * MiB)
    assert os.fstat(fd).st_size == 8 * MiB
    assert any_mount.free_bytes() <= free - 8 * MiB
    os.pwrite(fd, b"x" * 4096, 4 * MiB)
    os.close(fd)
    assert other.kv.get(path) == bytes(4 * MiB) + b"x" * 4096 + bytes(4 * MiB - 4096)


def test_fallocate_with_keep_size_leaves_the_size(path, other):
    fd = os.open(path, NEW, 0o644)
    syscalls.fallocate(fd, syscalls.FALLOC_FL_KEEP_SIZE, 0, 4 * MiB)
    assert os.fstat(fd).st_size == 0
    kv.write_all(fd, kv.pattern(16 * MiB))
    os.close(fd)
    assert other.kv.get(path) == kv.pattern(16 * MiB)


@pytest.mark.parametrize("mode", [0, syscalls.FALLOC_FL_KEEP_SIZE])
def test_fallocate_beyond_the_capacity_is_enospc_and_harms_nothing(any_mount, path, mode):
    kv.put(any_mount.path / "old", b"old bytes")
    free = any_mount.free_bytes()
    fd = os.open(path, NEW, 0o644)
    with kv.fails(errno.ENOSPC):
        syscalls.fallocate(fd, mode, 0, 100 * kv.GiB)
    assert kv.get(any_mount.path / "old") == b"old bytes"
    kv.write_all(fd, b"small")
    os.close(fd)
    assert kv.get(path) == b"small"
    assert any_mount.free_bytes() >= free - 8192


def test_punched_hole_reads_as_zeros_and_frees_its_bytes(any_mount, path, other):
    fd = os.open(path, NEW, 0o644)
    kv.write_all(fd, b"x" * 8 * MiB)
    free = any_mount.free_bytes()
    try:
        syscalls.fallocate(fd, syscalls.FALLOC_FL_PUNCH_HOLE | syscalls.FALLOC_FL_KEEP_SIZE, 2 * MiB, 4 * MiB)
    except OSError as error:
        assert error.errno == errno.EOPNOTSUPP
        pytest.skip("no FALLOC_FL_PUNCH_HOLE")
    assert any_mount.free_bytes() >= free + 4 * MiB
    os.close(fd)
    assert other.kv.get(path) == b"x" * 2 * MiB + bytes(4 * MiB) + b"x" * 2 * MiB


def test_unlinked_open_file_is_preallocated_and_used(any_mount, path):
    """Dynamo: mkostemp, O_DIRECT by fcntl, fallocate, unlink, keep using the descriptor."""
    free = any_mount.free_bytes()
    fd = os.open(path, NEW | os.O_CLOEXEC, 0o600)
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_DIRECT)
    syscalls.fallocate(fd, 0, 0, 32 * MiB)
    os.unlink(path)
    assert any_mount.free_bytes() <= free - 32 * MiB
    data = syscalls.aligned(kv.pattern(MiB))
    assert os.pwrite(fd, data, 17 * MiB) == MiB
    buffer = syscalls.aligned(bytes(MiB))
    assert os.preadv(fd, [buffer], 17 * MiB) == MiB and bytes(buffer) == bytes(data)
    os.close(fd)
    kv.eventually(lambda: any_mount.free_bytes() >= free, what="the bytes are free")


# ---- copies, advice, durability

def test_copy_file_range_copies_inside_the_mount(any_mount, path, other):
    data = kv.pattern(5 * MiB + 17)
    kv.put(path, data)
    source, target = os.open(path, os.O_RDONLY), os.open(any_mount.path / "copy", NEW, 0o644)
    done = 0
    while done < len(data):
        count = os.copy_file_range(source, target, len(data) - done)
        assert count > 0
        done += count
    assert os.copy_file_range(source, target, 100) == 0
    os.close(target)
    os.close(source)
    assert other.kv.get(any_mount.path / "copy") == data


def test_sendfile_gives_everything(any_mount, path):
    data = kv.pattern(3 * MiB)
    kv.put(path, data)
    source, target = os.open(path, os.O_RDONLY), os.open(any_mount.path / "copy", NEW, 0o644)
    assert os.sendfile(target, source, 0, len(data)) == len(data)
    os.close(source)
    os.close(target)
    assert kv.get(any_mount.path / "copy") == data


def test_durability_calls_and_advice_succeed(any_mount, path):
    fd = os.open(path, NEW, 0o644)
    kv.write_all(fd, kv.pattern(MiB))
    os.fsync(fd)
    os.fdatasync(fd)
    syscalls.sync_file_range(fd, 0, MiB, 2)
    for advice in (os.POSIX_FADV_SEQUENTIAL, os.POSIX_FADV_RANDOM, os.POSIX_FADV_WILLNEED, os.POSIX_FADV_DONTNEED):
        os.posix_fadvise(fd, 0, MiB, advice)
    os.close(fd)
    directory = os.open(any_mount.path, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(directory)
    os.fdatasync(directory)
    os.close(directory)
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    assert kv.get(path) == kv.pattern(MiB)


def test_terminal_ioctl_is_enotty(path):
    kv.put(path, b"x")
    fd = os.open(path, os.O_RDONLY)
    assert not os.isatty(fd)
    with kv.fails(errno.ENOTTY):
        fcntl.ioctl(fd, 0x1234)
    os.close(fd)


def test_read_without_waiting_is_answered_or_eagain(path):
    kv.put(path, kv.pattern(8192))
    fd = os.open(path, os.O_RDONLY)
    buffer = bytearray(8192)
    try:
        assert os.preadv(fd, [buffer], 0, os.RWF_NOWAIT) == 8192
        assert buffer == kv.pattern(8192)
    except OSError as error:
        assert error.errno in (errno.EAGAIN, errno.EOPNOTSUPP)
    os.close(fd)


def test_file_may_grow_while_another_descriptor_reads(path):
    writer, reader = os.open(path, NEW, 0o644), os.open(path, os.O_RDONLY)
    for n in range(100):
        kv.write_all(writer, b"0123456789")
        assert os.fstat(reader).st_size == 10 * (n + 1)
        assert os.pread(reader, 100, 10 * n) == b"0123456789"
    os.close(writer)
    os.close(reader)


def test_wrong_mode_of_descriptor_is_ebadf(path):
    kv.put(path, b"x")
    fd = os.open(path, os.O_RDONLY)
    with kv.fails(errno.EBADF):
        os.write(fd, b"y")
    os.close(fd)
    fd = os.open(path, os.O_WRONLY)
    with kv.fails(errno.EBADF):
        os.read(fd, 1)
    os.close(fd)
    with kv.fails(errno.EISDIR):
        os.open(path.parent, os.O_WRONLY)
