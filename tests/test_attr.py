# SPDX-License-Identifier: Apache-2.0
"""Attributes: times, permissions, blocks, and what statfs says."""
import errno
import os
import stat
import subprocess
import time

import kv
import pytest
import syscalls

OLD = 10**18  # 2001-09-09
CLOCK_STEP = 50_000_000  # the kernel's coarse clock lags behind
USER, GROUP = 4711, 4712


def now():
    return time.time_ns()


# ---- times

def test_times_of_a_new_key(any_mount, other):
    path, before = any_mount.path / "key", now() - CLOCK_STEP
    other.kv.put(path, b"bytes")
    found, after = os.stat(path), now()
    for value in (found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns):
        assert before <= value <= after
    if any_mount.lacks("passthrough") and not syscalls.birth_ns(path):
        pytest.skip("this libfuse passes no time of birth")
    assert before <= syscalls.birth_ns(path) <= after


def test_time_of_birth_stays(any_mount):
    path = any_mount.path / "key"
    kv.put(path, b"bytes")
    born = syscalls.birth_ns(path)
    kv.put(path, b"other bytes")
    os.rename(path, any_mount.path / "moved")
    os.chmod(any_mount.path / "moved", 0o600)
    os.utime(any_mount.path / "moved", (1, 2))
    assert syscalls.birth_ns(any_mount.path / "moved") == born
    any_mount.restart()
    assert syscalls.birth_ns(any_mount.path / "moved") == born


def test_reading_moves_atime(any_mount, other):
    path = any_mount.path / "key"
    kv.put(path, kv.pattern(100_000))
    os.utime(path, ns=(OLD, OLD))
    assert os.stat(path).st_atime_ns == OLD
    before = now() - CLOCK_STEP
    other.kv.get(path)
    found = os.stat(path)
    assert found.st_atime_ns >= before
    assert found.st_mtime_ns == OLD


@pytest.mark.options(noatime="on")
def test_noatime_leaves_atime(mount, other):
    path = mount.path / "key"
    kv.put(path, b"bytes")
    os.utime(path, ns=(OLD, OLD))
    other.kv.get(path)
    assert os.stat(path).st_atime_ns == OLD


UTIMENS = {
    "both": (123, 456),
    "before 1970": (-10**9 - 1, -1),
    "far": (2**33 * 10**9 + 999_999_999, 2**33 * 10**9 + 1),
}


@pytest.mark.parametrize("times", UTIMENS.values(), ids=UTIMENS)
def test_times_are_set_to_the_nanosecond(mount, other, times):
    path = mount.path / "key"
    kv.put(path, b"bytes")
    before = os.stat(path).st_ctime_ns
    os.utime(path, ns=times)
    found = other.os.stat(path)
    assert (found.st_atime_ns, found.st_mtime_ns) == times
    assert found.st_ctime_ns >= before
    mount.restart("kill9")
    found = os.stat(path)
    assert (found.st_atime_ns, found.st_mtime_ns) == times


def test_access_time_alone_is_set_to_now(mount, other):
    """llm-d marks its hot files by utimensat(UTIME_NOW, UTIME_OMIT)."""
    path = mount.path / "key"
    kv.put(path, b"bytes")
    os.utime(path, ns=(OLD, OLD))
    subprocess.run(["touch", "-a", path], check=True)
    found = os.stat(path)
    assert found.st_atime_ns >= now() - 10 * 10**9
    assert found.st_mtime_ns == OLD
    subprocess.run(["touch", "-m", "-d", "2010-01-01", path], check=True)
    assert other.os.stat(path).st_atime_ns == found.st_atime_ns


def test_utime_without_times_sets_both_to_now_by_the_same_clock(mount, other):
    path = mount.path / "key"
    kv.put(path, b"bytes")
    os.utime(path, ns=(OLD, OLD))
    before = now() - CLOCK_STEP
    other.os.utime(path)
    found = os.stat(path)
    assert min(found.st_atime_ns, found.st_mtime_ns) >= before


def test_writing_moves_mtime_and_ctime_and_metadata_moves_ctime_alone(any_mount):
    path = any_mount.path / "key"
    kv.put(path, b"bytes")
    os.utime(path, ns=(OLD, OLD))
    before = now() - CLOCK_STEP
    kv.put(path, b"other", 0)
    found = os.stat(path)
    assert found.st_mtime_ns >= before and found.st_ctime_ns >= before
    os.utime(path, ns=(OLD, OLD))
    os.chmod(path, 0o600)
    assert os.stat(path).st_mtime_ns == OLD
    assert os.stat(path).st_ctime_ns >= found.st_ctime_ns


def test_changes_of_a_directory_move_its_times(mount):
    directory = mount.mkdir("d")
    changes = [lambda: kv.put(directory / "a", b""), lambda: os.mkdir(directory / "b"),
               lambda: os.rename(directory / "a", directory / "c"), lambda: os.unlink(directory / "c"),
               lambda: os.rmdir(directory / "b"), lambda: os.symlink("x", directory / "s"),
               lambda: os.link(directory / "s", directory / "t", follow_symlinks=False)]
    for change in changes:
        os.utime(directory, ns=(OLD, OLD))
        change()
        kv.eventually(lambda: os.stat(directory).st_mtime_ns > OLD, what="mtime of the directory has moved")


def test_a_directory_changes_when_a_key_is_published_not_when_it_was_written(mount):
    directory = mount.mkdir("d")
    fd = os.open(directory / "early", os.O_WRONLY | os.O_CREAT)
    os.write(fd, b"bytes")
    kv.put(directory / "later", b"bytes")
    kv.eventually(lambda: (directory / "later").exists())
    os.unlink(directory / "later")
    before = os.stat(directory).st_mtime_ns
    os.close(fd)
    kv.eventually(lambda: os.stat(directory).st_mtime_ns != before, what="mtime of the directory has moved")
    assert os.stat(directory).st_mtime_ns > before


def test_new_bytes_for_a_name_leave_the_directory_as_it_was(mount):
    directory = mount.mkdir("d")
    kv.put(directory / "key", b"bytes")
    kv.eventually(lambda: os.path.exists(directory / "key"))
    os.utime(directory, ns=(OLD, OLD))
    kv.put(directory / "key", b"other bytes")
    kv.eventually(lambda: kv.get(directory / "key") == b"other bytes")
    assert os.stat(directory).st_mtime_ns == OLD
    mount.restart("kill9")
    assert os.stat(directory).st_mtime_ns == OLD


# ---- size and blocks

@pytest.mark.parametrize("size", [0, 1, 4096, 16_384, 100_000, kv.MiB, 5 * kv.MiB])
def test_blocks_are_what_the_bytes_take(any_mount, size):
    path = any_mount.path / "key"
    free = any_mount.free_bytes()
    kv.put(path, kv.pattern(size))
    taken = (size + 4095) // 4096 * 4096
    assert os.stat(path).st_blocks * 512 == taken
    assert free - any_mount.free_bytes() == taken
    any_mount.restart("kill9")
    assert os.stat(path).st_blocks * 512 == taken


def test_du_agrees_with_statfs(mount):
    free = mount.free_bytes()
    for n in range(20):
        kv.put(mount.path / f"k{n}", kv.pattern(n * 10_000))
    du = subprocess.run(["du", "-s", "-B1", "--exclude=.kvcache", mount.path], check=True, capture_output=True, text=True)
    assert abs(int(du.stdout.split()[0]) - (free - mount.free_bytes())) <= 65_536


# ---- statfs

@pytest.mark.options(ram_size="64M")
def test_statfs_tells_the_capacity_in_blocks_of_4096(mount, spawn):
    found = os.statvfs(mount.path)
    assert (found.f_bsize, found.f_frsize) == (4096, 4096)
    assert found.f_blocks * 4096 == 64 * kv.MiB
    assert found.f_bavail == found.f_bfree == found.f_blocks
    assert 0 < found.f_favail <= found.f_ffree <= found.f_files
    kv.put(mount.path / "key", b"x")
    inside = os.statvfs(mount.path / "key")
    assert inside.f_blocks == found.f_blocks
    user = spawn(uid=USER)
    assert user.os.statvfs(mount.path).f_bavail == inside.f_bavail


def test_free_space_moves_at_once(any_mount, other):
    free = any_mount.free_bytes()
    kv.put(any_mount.path / "key", kv.pattern(8 * kv.MiB))
    assert other.kv.get(any_mount.path / "key")
    assert any_mount.free_bytes() == free - 8 * kv.MiB
    os.unlink(any_mount.path / "key")
    assert any_mount.free_bytes() == free


def test_free_space_moves_while_a_file_is_written(any_mount):
    free = any_mount.free_bytes()
    fd = os.open(any_mount.path / "key", os.O_WRONLY | os.O_CREAT)
    for n in range(1, 9):
        kv.write_all(fd, kv.pattern(kv.MiB))
        assert any_mount.free_bytes() <= free - n * kv.MiB
    os.close(fd)


# ---- permissions

@pytest.fixture
def user(spawn):
    """A process of an ordinary user."""
    return spawn(uid=USER)


def test_ordinary_user_needs_permission_of_the_directory(mount, user):
    with kv.fails(errno.EACCES):
        user.kv.put(mount.path / "key", b"x")
    shared = mount.mkdir("shared")
    shared.chmod(0o777)
    user.kv.put(shared / "key", b"x")
    found = os.stat(shared / "key")
    assert (found.st_uid, found.st_gid, found.st_mode) == (USER, USER, stat.S_IFREG | 0o644)
    shared.chmod(0o700)
    with kv.fails(errno.EACCES):
        user.kv.get(shared / "key")


@pytest.mark.parametrize("mode, reads, writes", [
    (0o644, True, False), (0o600, False, False), (0o666, True, True), (0o622, False, True), (0o000, False, False)])
def test_mode_says_who_may_read_and_write(mount, user, mode, reads, writes):
    path = mount.path / "key"
    kv.put(path, b"bytes")
    path.chmod(mode)
    for wanted, bit, flags in ((reads, os.R_OK, os.O_RDONLY), (writes, os.W_OK, os.O_WRONLY)):
        assert user.os.access(path, bit) == wanted
        if wanted:
            user.os.close(user.os.open(path, flags))
        else:
            with kv.fails(errno.EACCES):
                user.os.open(path, flags)
    assert kv.get(path) == b"bytes"


def test_group_and_supplementary_group_count(mount, spawn):
    path = mount.path / "key"
    kv.put(path, b"bytes")
    os.chown(path, 0, GROUP)
    path.chmod(0o640)
    member, stranger = spawn(uid=USER, groups=[GROUP]), spawn(uid=USER)
    assert member.kv.get(path) == b"bytes"
    with kv.fails(errno.EACCES):
        stranger.kv.get(path)


def test_only_the_owner_changes_mode_owner_and_times(mount, user):
    path = mount.path / "key"
    kv.put(path, b"bytes")
    path.chmod(0o666)
    for change in (lambda: user.os.chmod(path, 0o777), lambda: user.os.chown(path, USER, USER),
                   lambda: user.os.utime(path, (1, 1)), lambda: user.os.setxattr(mount.path, "user.x", b"1")):
        with kv.fails(errno.EPERM, errno.EACCES):
            change()
    user.os.utime(path)  # to now: who may write, may
    os.chown(path, USER, USER)
    user.os.chmod(path, 0o600)
    with kv.fails(errno.EPERM):
        user.os.chown(path, 0, 0)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_umask_is_applied(mount, spawn, umask):
    process = spawn(umask=umask)
    process.os.mkdir(mount.path / "d", 0o777)
    process.os.close(process.os.open(mount.path / "f", os.O_WRONLY | os.O_CREAT, 0o666))
    assert os.stat(mount.path / "d").st_mode & 0o7777 == 0o777 & ~umask
    assert os.stat(mount.path / "f").st_mode & 0o7777 == 0o666 & ~umask


def test_create_with_a_mode_that_forbids_writing_still_writes(mount, user):
    shared = mount.mkdir("shared")
    shared.chmod(0o777)
    user.kv.put(shared / "key", b"bytes", os.O_CREAT | os.O_EXCL, 0o400)
    assert user.kv.get(shared / "key") == b"bytes"
    with kv.fails(errno.EACCES):
        user.kv.put(shared / "key", b"again")


def test_sticky_directory_protects_what_others_own(mount, spawn):
    shared = mount.mkdir("shared")
    shared.chmod(0o1777)
    owner, stranger = spawn(uid=USER), spawn(uid=USER + 1)
    owner.kv.put(shared / "key", b"mine")
    for harm in (lambda: stranger.os.unlink(shared / "key"),
                 lambda: stranger.os.rename(shared / "key", shared / "stolen")):
        with kv.fails(errno.EPERM, errno.EACCES):
            harm()
    stranger.kv.put(shared / "other", b"his")
    with kv.fails(errno.EPERM, errno.EACCES):
        stranger.os.rename(shared / "other", shared / "key")
    assert kv.get(shared / "key") == b"mine"
    owner.os.unlink(shared / "key")


def test_setgid_directory_gives_its_group(mount, user):
    shared = mount.mkdir("shared")
    os.chown(shared, 0, GROUP)
    shared.chmod(0o2777)
    user.kv.put(shared / "key", b"x")
    user.os.mkdir(shared / "d", 0o755)
    user.os.symlink("x", shared / "s")
    assert os.stat(shared / "key").st_gid == GROUP
    assert os.lstat(shared / "s").st_gid == GROUP
    assert os.stat(shared / "d").st_gid == GROUP
    assert os.stat(shared / "d").st_mode & stat.S_ISGID


@pytest.mark.parametrize("change", ["write", "truncate", "chown"])
def test_set_id_bits_are_dropped(any_mount, user, change):
    if change == "chown":
        any_mount.needs_libfuse((3, 17), "FUSE_HANDLE_KILLPRIV_V2")
    path = any_mount.path / "key"
    kv.put(path, b"program")
    path.chmod(0o6777)
    assert os.stat(path).st_mode & 0o7777 == 0o6777
    if change == "write":
        user.kv.put(path, b"evil", 0)
    elif change == "truncate":
        user.os.truncate(path, 2)
    else:
        os.chown(path, USER, USER)
    assert os.stat(path).st_mode & 0o7777 == 0o777


def test_mount_runs_no_set_id_programs_and_no_devices(mount):
    _, _, options = kv.mounts(mount.path)[0]
    assert {"nosuid", "nodev"} <= options


def test_o_noatime_is_for_the_owner(mount, user):
    shared = mount.mkdir("shared")
    shared.chmod(0o777)
    kv.put(shared / "key", b"bytes")
    os.close(os.open(shared / "key", os.O_RDONLY | os.O_NOATIME))
    with kv.fails(errno.EPERM):
        user.os.open(shared / "key", os.O_RDONLY | os.O_NOATIME)


def test_chmod_of_a_directory_is_kept(mount, user):
    directory = mount.mkdir("d")
    directory.chmod(0o774)
    assert os.stat(directory).st_mode & 0o7777 == 0o774
    with kv.fails(errno.EACCES):
        user.os.stat(directory / "key")
