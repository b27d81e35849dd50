# SPDX-License-Identifier: Apache-2.0
"""syscalls - the system calls that Python 3.11 has no function for."""
import ctypes
import fcntl
import mmap
import os
import struct
import subprocess

RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2
FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE = 1, 2, 16
F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW = 36, 37, 38
MAP_FAILED = ctypes.c_void_p(-1).value
AT_FDCWD = -100

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
libc.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
libc.getdents64.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
libc.getdents64.restype = ctypes.c_ssize_t


def _check(result, what):
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def renameat2(old, new, flags):
    _check(libc.renameat2(AT_FDCWD, os.fsencode(old), AT_FDCWD, os.fsencode(new), flags), "renameat2")


def fallocate(fd, mode, offset, length):
    _check(libc.fallocate(fd, mode, offset, length), "fallocate")


def sync_file_range(fd, offset, length, flags):
    _check(libc.sync_file_range(fd, offset, length, flags), "sync_file_range")


def link_descriptor(fd, path):
    """Give a name to an open file, as linkat with AT_SYMLINK_FOLLOW does for O_TMPFILE."""
    os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd, follow_symlinks=True)


def getdents(fd, size=4096):
    """One batch of directory entries as (name, d_type); empty at the end."""
    buffer = ctypes.create_string_buffer(size)
    end = _check(libc.getdents64(fd, buffer, size), "getdents64")
    at, found = 0, []
    while at < end:
        _, _, length, kind = struct.unpack_from("=QqHB", buffer, at)
        name = buffer.raw[at + 19:at + length].split(b"\0", 1)[0]
        found.append((name, kind))
        at += length
    return found


def listing(path, size=4096):
    """A directory read in small batches, without its dot entries, as a list of (name, d_type)."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        found = []
        while batch := getdents(fd, size):
            found += batch
    finally:
        os.close(fd)
    return [(name, kind) for name, kind in found if name not in (b".", b"..")]


class Mapping:
    """A mapping that keeps no descriptor, unlike Python's own."""

    def __init__(self, fd, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE):
        self._size = size
        self._at = libc.mmap(None, size, prot, flags, fd, 0)
        if self._at == MAP_FAILED:
            number = ctypes.get_errno()
            raise OSError(number, f"mmap: {os.strerror(number)}")

    def load(self):
        return ctypes.string_at(self._at, self._size)

    def store(self, offset, data):
        ctypes.memmove(self._at + offset, data, len(data))

    def close(self):
        libc.munmap(self._at, self._size)


def aligned(data):
    """The data in memory that begins at a page, as O_DIRECT wants it."""
    buffer = mmap.mmap(-1, max(len(data), 1))
    buffer[:len(data)] = data
    return memoryview(buffer)[:len(data)]


def ofd_lock(fd, command, kind):
    """F_OFD_SETLK or F_OFD_SETLKW on the whole file."""
    fcntl.fcntl(fd, command, struct.pack("hhqqi", kind, os.SEEK_SET, 0, 0, 0))


def birth_ns(path):
    """The time of birth as statx gives it; 0 when there is none."""
    text = subprocess.run(["stat", "-c", "%.9W", str(path)], check=True, capture_output=True, text=True).stdout
    seconds, _, fraction = text.strip().replace(",", ".").partition(".")
    return 0 if seconds in ("-", "0") else int(seconds) * 10**9 + int(fraction or 0)
