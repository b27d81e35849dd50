# SPDX-License-Identifier: Apache-2.0
"""Restart: what was published is there, whole, with everything about it, after SIGTERM as after kill -9."""
import errno
import os
import stat
import subprocess

import kv
import pytest
import syscalls

HOWS = ["SIGTERM", "kill9"]


def populate(mount):
    """Something of every kind."""
    root = mount.path
    for n, size in enumerate((0, 1, 4096, 100_001, 3 * kv.MiB)):
        kv.put(root / f"key{n}", kv.pattern(size, n))
        os.chmod(root / f"key{n}", 0o600 + n)
        os.utime(root / f"key{n}", ns=(10**18 + n, 10**18 + 7 * n))
    os.chown(root / "key1", 11, 22)
    os.setxattr(root / "key2", "user.note", b"mine")
    os.setxattr(root / "key3", "user.kvcache.pin", b"hard")
    mount.mkdir("dir", evict="off")
    (root / "dir" / "a" / "b").mkdir(parents=True)
    kv.put(root / "dir" / "a" / "b" / "deep", kv.pattern(50_000, 9))
    os.link(root / "key3", root / "dir" / "link")
    os.symlink("key3", root / "symbolic")
    os.mkfifo(root / "fifo", 0o640)
    kv.put(root / "overwritten", b"first")
    kv.put(root / "overwritten", b"second")
    kv.put(root / "renamed.tmp", b"renamed")
    os.rename(root / "renamed.tmp", root / "renamed")
    kv.put(root / "gone", b"x")
    os.unlink(root / "gone")
    in_place = mount.mkdir("plain", publish="open")
    kv.put(in_place / "log", b"line\n")


def describe(root):
    """Everything that must not change, by path."""
    found = {}
    for directory, directories, files in os.walk(root):
        for name in directories + files:
            path = os.path.join(directory, name)
            st = os.lstat(path)
            about = [st.st_ino, st.st_mode, st.st_nlink, st.st_uid, st.st_gid, st.st_mtime_ns, syscalls.birth_ns(path)]
            if stat.S_ISREG(st.st_mode):
                about += [st.st_size, st.st_blocks, st.st_atime_ns, kv.attribute(path, "generation"), kv.attribute(path, "pin")]
            if stat.S_ISLNK(st.st_mode):
                about.append(os.readlink(path))
            elif not stat.S_ISFIFO(st.st_mode):
                about.append([n for n in os.listxattr(path) if not n.startswith("user.kvcache.")])
            found[os.path.relpath(path, root)] = about
    return found


@pytest.mark.parametrize("how", HOWS)
def test_every_published_key_is_there_with_everything_about_it(any_mount, how):
    populate(any_mount)
    before, free = describe(any_mount.path), any_mount.free_bytes()
    any_mount.restart(how)
    assert describe(any_mount.path) == before
    assert any_mount.free_bytes() == free
    assert os.getxattr(any_mount.path / "key2", "user.note") == b"mine"
    assert kv.attribute(any_mount.path / "dir", "evict") == "off"
    for n, size in enumerate((0, 1, 4096, 100_001, 3 * kv.MiB)):
        assert kv.get(any_mount.path / f"key{n}") == kv.pattern(size, n)
        assert kv.attribute(any_mount.path / f"key{n}", "tier") == "memory"
    assert kv.get(any_mount.path / "dir" / "a" / "b" / "deep") == kv.pattern(50_000, 9)
    assert kv.get(any_mount.path / "overwritten") == b"second"
    assert kv.get(any_mount.path / "renamed") == b"renamed"


def test_access_time_of_a_read_survives_a_clean_restart(mount, other):
    kv.put(mount.path / "key", b"bytes")
    os.utime(mount.path / "key", ns=(10**18, 10**18))
    other.kv.get(mount.path / "key")
    read_at = os.stat(mount.path / "key").st_atime_ns
    assert read_at > 10**18
    mount.restart()
    assert os.stat(mount.path / "key").st_atime_ns == read_at


@pytest.mark.parametrize("how", HOWS)
def test_many_restarts_in_a_row(mount, how):
    for n in range(6):
        kv.put(mount.path / f"key{n}", kv.pattern(10_000, n))
        mount.restart(how)
        for m in range(n + 1):
            assert kv.get(mount.path / f"key{m}") == kv.pattern(10_000, m)


@pytest.mark.parametrize("how", HOWS)
def test_generation_goes_on_growing(mount, how):
    kv.put(mount.path / "key", b"1")
    before = int(kv.attribute(mount.path / "key", "generation"))
    mount.restart(how)
    kv.put(mount.path / "other", b"1")
    kv.put(mount.path / "key", b"2")
    assert int(kv.attribute(mount.path / "other", "generation")) > before
    assert int(kv.attribute(mount.path / "key", "generation")) > before


@pytest.mark.parametrize("how", HOWS)
def test_fsynced_key_survives_at_once(mount, other, how):
    for n in range(20):
        fd = other.os.open(mount.path / f"k{n}.tmp", os.O_WRONLY | os.O_CREAT, 0o644)
        other.os.write(fd, kv.pattern(5000, n))
        other.os.fsync(fd)
        other.os.rename(mount.path / f"k{n}.tmp", mount.path / f"k{n}")
        other.os.close(fd)
    mount.restart(how)
    assert {n for n in os.listdir(mount.path) if not n.endswith(".tmp")} == {f"k{n}" for n in range(20)}
    for n in range(20):
        assert kv.get(mount.path / f"k{n}") == kv.pattern(5000, n)


@pytest.mark.parametrize("how", HOWS)
def test_names_of_lost_memory_go_after_a_reboot(mount, how):
    populate(mount)
    if how == "SIGTERM":
        mount.stop()
    else:
        mount.kill9()
    mount.forget_memory()
    mount.start()
    assert set(os.listdir(mount.path)) - {"key0"} == {"dir", "plain", "symbolic", "fifo"}, "key0 is empty: nothing to lose"
    assert os.listdir(mount.path / "dir" / "a" / "b") == []
    assert os.listdir(mount.path / "plain") == []
    assert kv.attribute(mount.path / "dir", "evict") == "off"
    assert mount.free_bytes() == os.statvfs(mount.path).f_blocks * 4096
    kv.put(mount.path / "key4", b"new life")
    mount.restart("kill9")
    assert kv.get(mount.path / "key4") == b"new life"


def test_single_lost_or_short_file_of_the_memory_tier_is_a_miss_never_wrong_bytes(mount):
    for n in range(10):
        kv.put(mount.path / f"k{n}", kv.pattern(20_000, n))
    mount.stop()
    files = sorted(p for p in mount.memory.rglob("*") if p.is_file() and p.stat().st_size == 20_000)
    assert len(files) == 10
    files[0].unlink()
    os.truncate(files[1], 5000)
    mount.expect_errors(r"memory|size|short|lost")
    mount.start()
    there = os.listdir(mount.path)
    assert len(there) == 8
    for name in there:
        assert kv.get(mount.path / name) == kv.pattern(20_000, int(name[1:]))


def test_stray_files_of_the_memory_tier_are_removed(mount):
    free = mount.free_bytes()
    mount.stop()
    subdirectory = next((p for p in mount.memory.rglob("*") if p.is_dir()), mount.memory)
    (subdirectory / f"{0xffff1234:016x}").write_bytes(b"x" * kv.MiB)
    mount.start()
    assert mount.free_bytes() == free


def test_killed_daemon_lets_its_users_go_and_recovers_the_mount_point_by_itself(launch, spawn):
    mount, reader, sleeper = launch(passthrough="off"), spawn(), spawn()
    kv.put(mount.path / "key", kv.pattern(100_000))
    fd = reader.os.open(mount.path / "key", os.O_RDONLY)
    sleeper.os.chdir(mount.path)
    mount.kill9()
    for call in (lambda: reader.os.statvfs(mount.path), lambda: reader.os.fsync(fd),
                 lambda: reader.os.mkdir(mount.path / "d")):
        with kv.fails(errno.ENOTCONN, errno.EIO, errno.ECONNABORTED):
            call()
    mount.start()
    assert len(kv.mounts(mount.path)) == 1
    assert reader.kv.get(mount.path / "key") == kv.pattern(100_000)


def test_lock_of_the_state_goes_with_the_killed_daemon(mount):
    for _ in range(5):
        mount.kill9()
        mount.start()


@pytest.mark.concurrency
def test_daemon_killed_under_writers_leaves_whole_objects(mount, spawn):
    writers = [spawn() for _ in range(4)]
    for i, writer in enumerate(writers):
        writer.begin("kv.put_many", mount.path, f"w{i}.", 100_000, kv.pattern(20_000, i))
    kv.eventually(lambda: len(os.listdir(mount.path)) > 100, what="a hundred keys")
    mount.kill9()
    for writer in writers:
        with kv.fails(errno.ENOTCONN, errno.EIO, errno.ECONNABORTED, errno.ENODEV, errno.ENOENT):
            writer.result()
    mount.start()
    found = os.listdir(mount.path)
    assert len(found) > 100
    for name in found:
        assert kv.get(mount.path / name) == kv.pattern(20_000, int(name[1]))


def test_sigterm_ends_the_daemon_while_files_are_open(mount, other):
    fd = other.os.open(mount.path / "key", os.O_RDWR | os.O_CREAT, 0o644)
    other.os.write(fd, b"bytes")
    other.os.chdir(mount.path)
    mount.stop()
    mount.start()
    assert os.listdir(mount.path) in ([], ["key"])


def test_smaller_budget_after_restart_evicts(launch, work):
    mount = launch(ram_size="16M")
    for n in range(12):
        kv.put(mount.path / f"k{n}", kv.pattern(kv.MiB, n))
    mount.stop()
    mount.options["ram_size"] = "4M"
    mount.start()
    kv.eventually(lambda: len(os.listdir(mount.path)) <= 4, what="the budget is kept")
    for name in os.listdir(mount.path):
        assert kv.get(mount.path / name) == kv.pattern(kv.MiB, int(name[1:]))
    mount.stop()
    mount.options["ram_size"] = "32M"
    mount.start()
    for n in range(20):
        kv.put(mount.path / f"m{n}", kv.pattern(kv.MiB, n))
    assert len(os.listdir(mount.path)) >= 20


def test_memory_directory_may_be_anywhere(launch, work):
    memory = work / "elsewhere"
    memory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=700", "tmpfs", memory], check=True)
    mount = launch(memory_dir=memory)
    kv.put(mount.path / "key", kv.pattern(100_000))
    mount.restart("kill9")
    assert kv.get(mount.path / "key") == kv.pattern(100_000)
    assert kv.mounts(mount.state) == []
