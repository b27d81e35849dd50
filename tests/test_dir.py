# SPDX-License-Identifier: Apache-2.0
"""Directories: listing, renaming, removing, and many hands at once."""
import contextlib
import errno
import os
import sqlite3
import stat

import kv
import pytest
import syscalls

DT = {stat.S_IFREG: 8, stat.S_IFDIR: 4, stat.S_IFLNK: 10, stat.S_IFIFO: 1, stat.S_IFSOCK: 12}


# ---- listing

def test_empty_root_lists_nothing(mount):
    assert syscalls.listing(mount.path) == []
    assert os.stat(mount.path).st_nlink == 2


def test_listing_tells_the_kind_of_every_entry(mount):
    kv.put(mount.path / "file", b"")
    mount.mkdir("dir")
    os.symlink("x", mount.path / "link")
    os.mkfifo(mount.path / "fifo")
    os.mknod(mount.path / "socket", stat.S_IFSOCK | 0o600)
    assert sorted(syscalls.listing(mount.path)) == sorted([
        (b"file", DT[stat.S_IFREG]), (b"dir", DT[stat.S_IFDIR]), (b"link", DT[stat.S_IFLNK]),
        (b"fifo", DT[stat.S_IFIFO]), (b"socket", DT[stat.S_IFSOCK])])


def test_dot_entries_lead_where_they_should(mount):
    deep = mount.mkdir("a") / "b"
    deep.mkdir()
    fd = os.open(deep, os.O_RDONLY)
    assert {name for name, _ in syscalls.getdents(fd)} == {b".", b".."}
    os.close(fd)
    assert os.stat(deep / "..").st_ino == os.stat(mount.path / "a").st_ino
    assert os.stat(deep / "." / ".." / "..").st_ino == os.stat(mount.path).st_ino


def test_link_count_of_a_directory_counts_its_subdirectories(mount):
    for n in range(3):
        mount.mkdir(f"d{n}")
    assert os.stat(mount.path).st_nlink == 5
    os.rename(mount.path / "d0", mount.path / "d1" / "d0")
    assert os.stat(mount.path).st_nlink == 4
    assert os.stat(mount.path / "d1").st_nlink == 3
    os.rmdir(mount.path / "d1" / "d0")
    assert os.stat(mount.path / "d1").st_nlink == 2


def test_inode_numbers_of_listing_and_stat_agree(mount):
    for n in range(50):
        kv.put(mount.path / f"k{n}", b"")
    for entry in os.scandir(mount.path):
        assert entry.inode() == os.stat(entry.path).st_ino


def test_listing_while_others_come_and_go_gives_each_stable_name_once(mount, other):
    directory = mount.mkdir("d")
    stable = {f"stable{n:04}" for n in range(1500)}
    for name in stable | {f"old{n}" for n in range(500)}:
        kv.put(directory / name, b"")
    fd = os.open(directory, os.O_RDONLY)
    seen, turn = [], 0
    while batch := syscalls.getdents(fd, 2048):
        seen += [name.decode() for name, _ in batch]
        other.kv.put(directory / f"new{turn}", b"")
        if turn < 500:
            other.os.unlink(directory / f"old{turn}")
        turn += 1
        assert turn < 2000, "the listing does not end"
    os.close(fd)
    assert turn > 20, "streamed in batches"
    assert sorted(name for name in seen if name in stable) == sorted(stable)
    assert len(seen) == len(set(seen))


def test_listing_is_read_again_from_the_start_after_rewind(mount):
    for n in range(300):
        kv.put(mount.path / f"k{n}", b"")
    fd = os.open(mount.path, os.O_RDONLY)
    first = syscalls.getdents(fd, 1024)
    os.lseek(fd, 0, os.SEEK_SET)
    kv.put(mount.path / "more", b"")
    names = []
    while batch := syscalls.getdents(fd, 1024):
        names += [name for name, _ in batch]
    assert {n for n, _ in first} <= set(names)
    assert len(names) == len(set(names)) == 303
    os.close(fd)


@pytest.mark.parametrize("size", [80, 120, 280, 4096])
def test_listing_gives_names_of_one_hash_once_each_wherever_it_is_split(mount, size):
    directory = mount.mkdir("d")
    names = {f"name{n:02}" for n in range(30)}
    for name in names:
        os.symlink("x", directory / name)
    mount.stop()
    with contextlib.closing(sqlite3.connect(mount.state / "kvcachefs.db")) as db, db:
        same = "UPDATE dentry SET hash = ? WHERE name >= ? AND name < ?"
        db.execute(same, (2**62 + 5, b"name00", b"name07"))
        db.execute(same, (2**62 + 6, b"name07", b"name12"))
        db.execute(same, (2**63 - 1, b"name12", b"name20"))
    mount.start()
    assert sorted(name.decode() for name, _ in syscalls.listing(directory, size)) == sorted(names)


def test_listing_shows_changes_of_another_process_at_once(mount, other):
    for n in range(20):
        other.kv.put(mount.path / f"k{n}", b"")
        assert len(os.listdir(mount.path)) == n + 1
    for n in range(20):
        other.os.unlink(mount.path / f"k{n}")
        assert len(os.listdir(mount.path)) == 19 - n


def test_listing_right_after_a_close_shows_the_key(mount, other):
    for n in range(200):
        other.kv.put(mount.path / f"k{n}", b"x")
        assert f"k{n}" in os.listdir(mount.path)
        assert f"k{n}" in other.os.listdir(mount.path)


def test_open_directory_that_was_removed_lists_nothing(mount):
    mount.mkdir("d")
    fd = os.open(mount.path / "d", os.O_RDONLY)
    os.rmdir(mount.path / "d")
    assert os.listdir(fd) == []
    with kv.fails(errno.ENOENT):
        os.open("key", os.O_CREAT | os.O_WRONLY, dir_fd=fd)
    os.close(fd)


# ---- unlink and rmdir

def test_removing_errors(mount):
    kv.put(mount.path / "file", b"")
    kv.put(mount.mkdir("d") / "key", b"")
    for number, call in ((errno.ENOENT, lambda: os.unlink(mount.path / "missing")),
                         (errno.ENOENT, lambda: os.rmdir(mount.path / "missing")),
                         (errno.EISDIR, lambda: os.unlink(mount.path / "d")),
                         (errno.ENOTDIR, lambda: os.rmdir(mount.path / "file")),
                         (errno.ENOTEMPTY, lambda: os.rmdir(mount.path / "d")),
                         (errno.EINVAL, lambda: os.rmdir(f"{mount.path}/d/.")),
                         (errno.EEXIST, lambda: os.mkdir(mount.path / "d")),
                         (errno.EEXIST, lambda: os.mkdir(mount.path / "file"))):
        with kv.fails(number):
            call()


def test_unlink_by_another_process_is_seen_at_once(mount, other):
    for n in range(50):
        path = mount.path / f"k{n}"
        kv.put(path, b"x")
        assert other.kv.exists(path)
        other.os.unlink(path)
        with kv.fails(errno.ENOENT):
            os.stat(path)


def test_directory_with_an_unfinished_file_is_not_empty(mount, other):
    directory = mount.mkdir("d")
    fd = other.os.open(directory / "key", os.O_WRONLY | os.O_CREAT, 0o644)
    other.os.write(fd, b"bytes")
    assert os.listdir(directory) == []
    with kv.fails(errno.ENOTEMPTY):
        os.rmdir(directory)
    other.os.close(fd)
    assert kv.get(directory / "key") == b"bytes"


def test_directory_is_empty_again_after_its_writer_was_killed(mount, other):
    directory = mount.mkdir("d")
    other.os.open(directory / "key", os.O_WRONLY | os.O_CREAT, 0o644)
    other.kill()
    kv.eventually(lambda: kv.try_rmdir(directory), what="the directory is empty")


@pytest.mark.concurrency
def test_rmdir_that_races_with_create_never_loses_a_key(mount, spawn):
    """Either the directory went and the create failed, or the key is in a directory that stayed."""
    maker, remover = spawn(), spawn()
    for turn in range(200):
        directory = mount.path / f"d{turn}"
        directory.mkdir()
        maker.begin("kv.put", directory / "key", b"x")
        remover.begin("kv.try_rmdir", directory)
        removed = remover.result()
        try:
            maker.result()
            assert not removed and kv.get(directory / "key") == b"x"
        except FileNotFoundError:
            assert removed and not directory.exists()


@pytest.mark.concurrency
def test_same_deep_path_is_made_by_many_processes(mount, spawn):
    makers = [spawn() for _ in range(32)]
    for turn in range(5):
        deep = mount.path / f"m{turn}" / "a" / "b" / "c" / "d"
        for maker in makers:
            maker.begin("kv.make_directories", deep, 5)
        for maker in makers:
            maker.result()
        assert deep.is_dir()


@pytest.mark.concurrency
def test_eight_processes_remove_ten_thousand_keys(mount, spawn):
    workers = [spawn() for _ in range(8)]
    directory = mount.mkdir("d")
    for i, worker in enumerate(workers):
        worker.begin("kv.put_many", directory, f"w{i}.", 1250, b"x")
    for worker in workers:
        worker.result()
    assert len(os.listdir(directory)) == 10_000
    for i, worker in enumerate(workers):
        worker.begin("kv.unlink_many", directory, f"w{i}.", 1250)
    for worker in workers:
        worker.result()
    assert os.listdir(directory) == []
    os.rmdir(directory)
    assert mount.free_bytes() == os.statvfs(mount.path).f_blocks * 4096


# ---- rename

def test_rename_moves_a_key_with_everything(mount, other):
    directory = mount.mkdir("d")
    kv.put(mount.path / "key", b"bytes")
    before = os.stat(mount.path / "key")
    other.os.rename(mount.path / "key", directory / "moved")
    after = os.stat(directory / "moved")
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (before.st_ino, 5, before.st_mtime_ns)
    assert kv.get(directory / "moved") == b"bytes"
    assert not kv.exists(mount.path / "key")


def test_rename_of_a_full_directory_moves_what_is_inside(mount, other):
    """UCM takes its garbage-collection lock by renaming the directory with the heartbeat in it."""
    lock = mount.mkdir(".ucm_gc.lock")
    kv.put(lock / "hb.node.1.2", b"beat")
    (lock / "deep" / "er").mkdir(parents=True)
    kv.put(lock / "deep" / "er" / "key", b"bytes")
    held = other.os.open(lock / "deep" / "er", os.O_RDONLY)
    lock.rename(mount.path / ".ucm_gc.stale.1")
    assert not kv.exists(lock)
    with kv.fails(errno.ENOENT):
        other.os.stat(lock / "hb.node.1.2")
    assert other.kv.get(mount.path / ".ucm_gc.stale.1" / "deep" / "er" / "key") == b"bytes"
    assert other.os.listdir(held) == ["key"]
    mount.restart("kill9")
    assert kv.get(mount.path / ".ucm_gc.stale.1" / "hb.node.1.2") == b"beat"


def test_rename_over_directories(mount):
    empty, full, other = mount.mkdir("empty"), mount.mkdir("full"), mount.mkdir("other")
    kv.put(full / "key", b"x")
    kv.put(mount.path / "file", b"x")
    full.rename(empty)
    assert kv.get(empty / "key") == b"x"
    for number, source, target in ((errno.ENOTEMPTY, other, empty), (errno.EISDIR, mount.path / "file", other),
                                   (errno.ENOTDIR, other, mount.path / "file"), (errno.EINVAL, empty, empty / "below"),
                                   (errno.ENOENT, mount.path / "missing", mount.path / "new")):
        with kv.fails(number):
            os.rename(source, target)
    os.rename(mount.path / "file", mount.path / "file")
    assert kv.get(mount.path / "file") == b"x"


def test_rename_over_a_directory_with_an_unfinished_file_is_refused(mount, other):
    target, source = mount.mkdir("target"), mount.mkdir("source")
    fd = other.os.open(target / "key", os.O_WRONLY | os.O_CREAT, 0o644)
    with kv.fails(errno.ENOTEMPTY):
        source.rename(target)
    other.os.close(fd)
    assert kv.exists(target / "key")


def test_rename_noreplace(mount, other):
    one, two = mount.path / "one", mount.path / "two"
    kv.put(one, b"one")
    kv.put(two, b"two")
    with kv.fails(errno.EEXIST):
        syscalls.renameat2(one, two, syscalls.RENAME_NOREPLACE)
    assert kv.get(two) == b"two"
    other.syscalls.renameat2(one, mount.path / "three", syscalls.RENAME_NOREPLACE)
    assert kv.get(mount.path / "three") == b"one"


def test_rename_exchange(mount, other):
    one, two = mount.path / "one", mount.mkdir("two")
    kv.put(one, b"one")
    kv.put(two / "key", b"two")
    other.syscalls.renameat2(one, two, syscalls.RENAME_EXCHANGE)
    assert kv.get(two) == b"one"
    assert kv.get(one / "key") == b"two"
    with kv.fails(errno.ENOENT):
        syscalls.renameat2(one, mount.path / "missing", syscalls.RENAME_EXCHANGE)
    mount.restart("kill9")
    assert kv.get(two) == b"one"
    assert kv.get(one / "key") == b"two"


def test_rename_with_unknown_flags_is_einval(mount):
    kv.put(mount.path / "key", b"")
    with kv.fails(errno.EINVAL):
        syscalls.renameat2(mount.path / "key", mount.path / "new", 1 << 10)


def test_rename_frees_the_bytes_it_replaces(mount):
    free = mount.free_bytes()
    kv.put(mount.path / "one", kv.pattern(kv.MiB))
    kv.put(mount.path / "two", kv.pattern(kv.MiB))
    os.rename(mount.path / "one", mount.path / "two")
    # A reader that found the old one may be about to open it: its bytes go when the kernel forgets it.
    kv.eventually(lambda: mount.free_bytes() == free - kv.MiB, what="the bytes of the one replaced are free")


@pytest.mark.concurrency
def test_stat_inside_a_directory_that_is_renamed_finds_old_or_new(mount, other):
    one, two = mount.mkdir("one"), mount.path / "two"
    kv.put(one / "key", b"x")
    other.begin("kv.rename_to_and_fro", one, two, 500)
    found = 0
    while not other.answered():
        for path in (one / "key", two / "key"):
            try:
                found += os.stat(path).st_size
            except FileNotFoundError:
                pass
    other.result()
    assert found > 0
    assert kv.get(one / "key") == b"x"


@pytest.mark.concurrency
def test_directory_never_moves_below_itself_in_a_race(mount, spawn):
    """a -> b/a and b -> a/b at once: at most one may win, and nothing is lost."""
    one, two = spawn(), spawn()
    for turn in range(100):
        a, b = mount.path / f"a{turn}", mount.path / f"b{turn}"
        a.mkdir()
        b.mkdir()
        one.begin("kv.try_rename", a, b / "a")
        two.begin("kv.try_rename", b, a / "b")
        assert [one.result(), two.result()].count(True) == 1
        assert kv.exists(a / "b") or kv.exists(b / "a")
