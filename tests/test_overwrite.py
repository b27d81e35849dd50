# SPDX-License-Identifier: Apache-2.0
"""Overwriting and changing: a new version beside the old one, swapped in at publish; readers keep what they opened."""
import errno
import os
import signal

import kv
import pytest

OLD, NEW = kv.pattern(200_000, 1), kv.pattern(123_457, 2)
OVERWRITE = os.O_WRONLY | os.O_TRUNC


@pytest.fixture
def key(any_mount):
    """A key with the old bytes, for either transport."""
    path = any_mount.path / "key"
    kv.put(path, OLD)
    return path


def generation(path):
    return int(kv.attribute(path, "generation"))


def test_reader_of_the_old_version_keeps_its_bytes(key, other):
    reader = os.open(key, os.O_RDONLY)
    fd = other.os.open(key, OVERWRITE)
    other.os.write(fd, NEW)
    assert kv.read_all(reader) == OLD
    assert kv.get(key) == OLD and os.stat(key).st_size == len(OLD)
    other.os.close(fd)
    assert kv.get(key) == NEW and os.stat(key).st_size == len(NEW)
    assert kv.read_all(reader) == OLD
    assert os.fstat(reader).st_size == len(OLD)
    os.close(reader)


def test_overwriter_reads_its_own_bytes_by_name(key, other):
    fd = other.os.open(key, OVERWRITE)
    other.os.write(fd, NEW)
    assert other.kv.get(key) == NEW
    assert other.os.stat(key).st_size == len(NEW)
    assert kv.get(key) == OLD
    other.os.close(fd)


@pytest.mark.parametrize("reading", [False, True])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV], ids=lambda n: n.name)
def test_aborted_overwrite_leaves_the_old_version(any_mount, key, other, number, reading):
    reader = os.open(key, os.O_RDONLY) if reading else None
    before, free = generation(key), any_mount.free_bytes()
    other.resource.setrlimit(4, (0, 0))  # RLIMIT_CORE
    fd = other.os.open(key, OVERWRITE)
    other.os.write(fd, NEW)
    other.kill(number)
    assert kv.get(key) == OLD
    assert generation(key) == before
    if reading:
        assert kv.read_all(reader) == OLD
        os.close(reader)
    kv.eventually(lambda: any_mount.free_bytes() >= free, what="the bytes are free")
    kv.put(key, NEW)
    assert kv.get(key) == NEW


def test_overwrite_frees_the_old_bytes(any_mount, key, other):
    free = any_mount.free_bytes()
    for seed in range(20):
        other.kv.put(key, kv.pattern(len(OLD), seed))
    assert kv.get(key) == kv.pattern(len(OLD), 19)
    kv.eventually(lambda: any_mount.free_bytes() >= free, what="the bytes are free")


def test_old_version_is_freed_when_its_last_reader_closes(any_mount, key, other):
    free = any_mount.free_bytes()
    reader = os.open(key, os.O_RDONLY)
    other.kv.put(key, kv.pattern(len(OLD), 3))
    assert any_mount.free_bytes() < free
    os.close(reader)
    kv.eventually(lambda: any_mount.free_bytes() >= free, what="the bytes are free")


def test_change_without_truncation_is_private_until_close(key, other):
    reader = os.open(key, os.O_RDONLY)
    fd = other.os.open(key, os.O_RDWR)
    other.os.pwrite(fd, b"changed", 1000)
    changed = OLD[:1000] + b"changed" + OLD[1007:]
    assert other.kv.get(key) == changed
    assert kv.get(key) == OLD
    other.os.close(fd)
    assert kv.get(key) == changed
    assert kv.read_all(reader) == OLD
    os.close(reader)


def test_killed_change_without_truncation_leaves_the_old_version(key, other):
    fd = other.os.open(key, os.O_RDWR)
    other.os.pwrite(fd, b"changed", 1000)
    other.kill()
    assert kv.get(key) == OLD


@pytest.mark.parametrize("flags", [os.O_RDWR, os.O_RDWR | os.O_CREAT, os.O_RDWR | os.O_DIRECT, os.O_WRONLY])
def test_open_for_writing_that_only_reads_publishes_nothing(any_mount, key, other, flags):
    os.utime(key, ns=(10**18, 10**18))
    before, free = generation(key), any_mount.free_bytes()
    fd = other.os.open(key, flags)
    if not flags & os.O_WRONLY:
        assert other.os.pread(fd, 4096, 0)[:4096] == OLD[:4096]
    assert any_mount.free_bytes() >= free - 8192
    other.os.close(fd)
    assert kv.get(key) == OLD
    assert generation(key) == before
    assert os.stat(key).st_mtime_ns == 10**18


def test_each_published_version_has_a_larger_generation(key, other):
    seen = [generation(key)]
    for _ in range(5):
        other.kv.put(key, NEW)
        seen.append(generation(key))
    assert seen == sorted(set(seen))


def test_append_adds_to_the_end_and_is_published_at_close(key, other):
    reader = os.open(key, os.O_RDONLY)
    fd = other.os.open(key, os.O_WRONLY | os.O_APPEND)
    other.os.write(fd, b"one")
    other.os.write(fd, b"two")
    assert kv.get(key) == OLD
    other.os.close(fd)
    assert kv.get(key) == OLD + b"onetwo"
    assert kv.read_all(reader) == OLD
    os.close(reader)


def test_append_to_a_new_name(any_mount, other):
    path = any_mount.path / "log"
    for word in (b"one", b"two", b"three"):
        other.kv.put(path, word, os.O_APPEND | os.O_CREAT)
    assert kv.get(path) == b"onetwothree"


@pytest.mark.parametrize("size", [0, 1, 4096, 100_001, 300_000])
def test_truncate_by_path_leaves_readers_alone(key, other, size):
    reader = os.open(key, os.O_RDONLY)
    other.os.truncate(key, size)
    want = OLD[:size].ljust(size, b"\0")
    assert os.stat(key).st_size == size
    assert kv.get(key) == want
    assert other.kv.get(key) == want
    assert kv.read_all(reader) == OLD
    os.close(reader)


@pytest.mark.parametrize("size", [0, 1, 4096, 100_001, 300_000])
def test_truncate_by_path_without_readers(key, other, size):
    os.truncate(key, size)
    assert other.kv.get(key) == OLD[:size].ljust(size, b"\0")


def test_ftruncate_of_a_private_copy_is_published_at_close(key, other):
    fd = other.os.open(key, os.O_RDWR)
    other.os.ftruncate(fd, 1000)
    other.os.pwrite(fd, b"end", 2000)
    assert kv.get(key) == OLD
    other.os.close(fd)
    assert kv.get(key) == OLD[:1000].ljust(2000, b"\0") + b"end"


def test_rename_over_a_key_that_is_being_read(key, other):
    reader = os.open(key, os.O_RDONLY)
    other.kv.put(f"{key}.tmp", NEW)
    other.os.replace(f"{key}.tmp", key)
    assert kv.get(key) == NEW
    assert kv.read_all(reader) == OLD
    assert os.fstat(reader).st_ino != os.stat(key).st_ino
    os.close(reader)


def test_rename_before_close_over_a_key_that_is_being_read(key, other):
    reader = os.open(key, os.O_RDONLY)
    fd = other.os.open(f"{key}.tmp", os.O_WRONLY | os.O_CREAT, 0o644)
    other.os.write(fd, NEW)
    other.os.replace(f"{key}.tmp", key)
    assert kv.get(key) == NEW
    assert kv.read_all(reader) == OLD
    other.os.close(fd)
    assert kv.get(key) == NEW
    os.close(reader)


def test_unlinked_key_stays_readable_until_the_last_close(any_mount, key, other):
    reader = other.os.open(key, os.O_RDONLY)
    free = any_mount.free_bytes()
    os.unlink(key)
    assert not kv.exists(key)
    assert other.kv.read_all(reader) == OLD
    assert other.os.fstat(reader).st_nlink == 0
    other.os.close(reader)
    kv.eventually(lambda: any_mount.free_bytes() >= free + len(OLD), what="the bytes are free")


def test_name_can_be_used_again_while_the_removed_key_is_read(key, other):
    reader = os.open(key, os.O_RDONLY)
    os.unlink(key)
    other.kv.put(key, NEW)
    assert kv.get(key) == NEW
    assert kv.read_all(reader) == OLD
    os.close(reader)


LATE = {
    "truncating": OVERWRITE,
    "changing": os.O_RDWR,
    "appending": os.O_WRONLY | os.O_APPEND,
}


@pytest.mark.parametrize("how", [None, "SIGTERM", "kill9"])
@pytest.mark.parametrize("flags", LATE.values(), ids=LATE)
def test_removed_key_does_not_return_with_a_late_close(mount, other, flags, how):
    path = mount.path / "key"
    kv.put(path, OLD)
    fd = other.os.open(path, flags)
    other.os.write(fd, NEW)
    os.unlink(path)
    other.os.close(fd)
    assert not kv.exists(path)
    assert os.listdir(mount.path) == []
    assert not other.kv.exists(path)
    if how:
        mount.restart(how)
        assert os.listdir(mount.path) == []
    kv.put(path, b"new life")
    assert other.kv.get(path) == b"new life"


def test_two_overwriters_leave_one_intact_image(any_mount, spawn):
    path = any_mount.path / "key"
    kv.put(path, OLD)
    one, two = spawn(), spawn()
    images = [kv.pattern(150_000, 4), kv.pattern(150_000, 5)]
    first, second = (w.os.open(path, OVERWRITE) for w in (one, two))
    one.os.write(first, images[0][:70_000])
    two.os.write(second, images[1][:70_000])
    one.os.write(first, images[0][70_000:])
    two.os.write(second, images[1][70_000:])
    assert kv.get(path) == OLD
    one.os.close(first)
    assert kv.get(path) in images
    two.os.close(second)
    assert kv.get(path) in images


def test_overwrite_keeps_mode_owner_birth_and_stored_attributes(key, other):
    os.chmod(key, 0o640)
    os.chown(key, 12, 34)
    os.setxattr(key, "user.note", b"mine")
    before = os.stat(key)
    other.kv.put(key, NEW)
    after = os.stat(key)
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, 12, 34)
    assert os.getxattr(key, "user.note") == b"mine"
    assert after.st_mtime_ns >= before.st_mtime_ns


def test_overwritten_descriptor_written_after_the_name_was_replaced(key, other):
    """Two versions under way: what the slower one publishes is whole."""
    fd = other.os.open(key, OVERWRITE)
    other.os.write(fd, NEW[:1000])
    kv.put(key, b"quick")
    assert kv.get(key) == b"quick"
    other.os.write(fd, NEW[1000:])
    other.os.close(fd)
    assert kv.get(key) in (NEW, b"quick")


def reopen(fd, flags):
    """Open a file by its descriptor: the kernel does not come back under a name when it is told to look again."""
    with kv.fails(errno.EBUSY):
        os.open(f"/proc/self/fd/{fd}", flags)


def test_writing_by_descriptor_of_a_published_key_is_refused(any_mount, key, other):
    reader = os.open(key, os.O_RDONLY)
    reopen(reader, OVERWRITE)
    reopen(reader, os.O_WRONLY)
    with kv.fails(errno.EBUSY):
        os.truncate(f"/proc/self/fd/{reader}", 5)
    other.os.rename(key, f"{key}.moved")
    assert os.stat(f"{key}.moved").st_size == len(OLD)
    assert kv.get(f"{key}.moved") == OLD
    other.os.rename(f"{key}.moved", key)
    assert kv.get(key) == OLD
    os.close(reader)


def test_writing_refused_by_descriptor_has_no_effect_on_other_names(any_mount, key):
    bystander = any_mount.path / "bystander"
    kv.put(bystander, OLD)
    reader = os.open(key, os.O_RDONLY)
    reopen(reader, OVERWRITE)
    assert os.stat(bystander).st_size == len(OLD) and kv.get(bystander) == OLD
    assert kv.get(key) == OLD
    os.close(reader)


def test_overwrite_of_a_key_that_has_just_gone_ends_with_the_create(any_mount, key, other):
    """As when it is evicted between the writer's lookup and its open."""
    reader = os.open(key, os.O_RDONLY)
    other.os.unlink(key)
    reopen(reader, OVERWRITE)
    assert not kv.exists(key)
    other.kv.put(key, NEW)
    assert os.stat(key).st_size == len(NEW) and kv.get(key) == NEW
    reopen(reader, OVERWRITE)
    kv.put(key, OLD)
    assert kv.get(key) == OLD and other.kv.get(key) == OLD
    os.close(reader)


@pytest.mark.parametrize("how", [os.rename, os.link])
def test_key_open_for_writing_and_not_written_keeps_its_bytes_under_a_new_name(any_mount, key, other, how):
    fd = os.open(key, os.O_RDWR)
    how(key, f"{key}.new")
    assert other.kv.get(f"{key}.new") == OLD
    os.close(fd)
    assert other.kv.get(f"{key}.new") == OLD and kv.get(f"{key}.new") == OLD
    any_mount.restart()
    assert kv.get(f"{key}.new") == OLD


def test_change_that_begins_after_somebody_elses_overwrite_has_its_own_old_bytes(any_mount, key, other):
    fd = os.open(key, os.O_RDWR)
    other.kv.put(key, NEW)
    assert other.kv.get(key) == NEW
    assert os.pread(fd, len(OLD), 0) == OLD
    assert os.pwrite(fd, b"changed", 0) == 7
    os.close(fd)
    kv.eventually(lambda: other.kv.get(key) == b"changed" + OLD[7:], what="the last close is what counts")


def test_overwriter_whose_name_has_moved_and_gone_publishes_a_new_object(any_mount, key, other):
    moved = f"{key}.moved"
    fd = other.os.open(key, OVERWRITE)
    other.os.write(fd, NEW)
    inode = os.stat(key).st_ino
    os.rename(key, moved)
    reader = os.open(moved, os.O_RDONLY)
    os.unlink(moved)
    other.os.close(fd)
    assert kv.get(key) == NEW
    assert os.stat(key).st_ino != inode
    assert kv.read_all(reader) == OLD
    os.close(reader)
    any_mount.restart()
    assert os.listdir(any_mount.path) == ["key"] and kv.get(key) == NEW


def test_two_writers_of_a_new_name_whose_first_object_has_gone(any_mount, spawn):
    path = any_mount.path / "key"
    writers = [spawn() for _ in range(3)]
    fds = [w.os.open(path, OVERWRITE | os.O_CREAT, 0o644) for w in writers]
    inodes = set()
    for n, (w, fd) in enumerate(zip(writers, fds, strict=True)):
        w.os.write(fd, kv.pattern(10_000, n))
        w.os.close(fd)
        assert kv.get(path) == kv.pattern(10_000, n)
        inodes.add(os.stat(path).st_ino)
        reader = os.open(path, os.O_RDONLY)
        os.rename(path, f"{path}.moved")
        os.unlink(f"{path}.moved")
        assert kv.read_all(reader) == kv.pattern(10_000, n)
        os.close(reader)
    assert len(inodes) == len(writers)
    assert os.listdir(any_mount.path) == []


def test_renamed_before_close_the_object_goes_along_with_its_attributes(any_mount, key, other):
    os.setxattr(key, "user.note", b"mine")
    before, free = os.stat(key), any_mount.free_bytes()
    reader = os.open(key, os.O_RDONLY)
    fd = other.os.open(key, OVERWRITE)
    other.os.write(fd, NEW)
    other.os.rename(key, f"{key}.new")
    assert os.listdir(any_mount.path) == ["key.new"]
    assert kv.get(f"{key}.new") == NEW and kv.read_all(reader) == OLD
    other.os.close(fd)
    os.close(reader)
    for _ in ("running", "restarted"):
        assert os.stat(f"{key}.new").st_ino == before.st_ino
        assert os.getxattr(f"{key}.new", "user.note") == b"mine"
        any_mount.restart()
    kv.eventually(lambda: any_mount.free_bytes() >= free, what="the old bytes are free")


@pytest.mark.parametrize("second_first", [False, True])
def test_renamed_before_close_one_of_two_names_goes(any_mount, key, other, second_first):
    names = [str(key), f"{key}.second"]
    os.link(*names)
    gone, stays = reversed(names) if second_first else names
    fd = other.os.open(gone, OVERWRITE)
    other.os.write(fd, NEW)
    other.os.rename(gone, f"{key}.new")
    other.os.close(fd)
    for _ in ("running", "restarted"):
        assert sorted(os.listdir(any_mount.path)) == sorted([os.path.basename(stays), "key.new"])
        assert kv.get(f"{key}.new") == NEW and kv.get(stays) == OLD
        assert os.stat(stays).st_nlink == 1
        any_mount.restart()
    os.unlink(stays)
    assert os.listdir(any_mount.path) == ["key.new"]


@pytest.mark.parametrize("exists", [False, True])
def test_opened_again_before_it_is_published_it_has_the_new_bytes(launch, exists):
    mount = launch(publish_wait="0s")
    paths = [mount.path / f"key{n}" for n in range(300)]
    for path in paths if exists else []:
        kv.put(path, OLD)
        kv.eventually(lambda path=path: kv.attribute(path, "status") == "COMPLETE", what="published")
    for path in paths:
        kv.put(path, NEW)
        fd = os.open(path, os.O_RDWR)
        assert kv.read_all(fd) == NEW
        os.pwrite(fd, b"more", len(NEW))
        os.close(fd)
    mount.restart()
    for path in paths:
        assert kv.get(path) == NEW + b"more"


@pytest.mark.concurrency
def test_names_overwritten_read_and_renamed_over_each_other(any_mount, spawn):
    paths = [str(any_mount.path / f"key{n}") for n in range(4)]
    others = [spawn() for _ in range(8)]
    for n, one in enumerate(others):
        one.begin("kv.mix", ("read", "overwrite", "rename", "change")[n % 4], paths, 1000, n)
    for one in others:
        one.result()
    any_mount.restart()
    for name in os.listdir(any_mount.path):
        assert len(set(kv.get(any_mount.path / name))) == 1, "torn"
