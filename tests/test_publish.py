# SPDX-License-Identifier: Apache-2.0
"""Publishing: a name that is visible has all its bytes. The reader is this process, the writer another one."""
import contextlib
import errno
import os
import pathlib
import signal
import sqlite3
import subprocess
import threading

import kv
import pytest
import syscalls

WRITE_NEW = os.O_WRONLY | os.O_CREAT
DATA = kv.pattern(300_000)
HALF = len(DATA) // 2


def begin(other, path, data=DATA, flags=WRITE_NEW):
    """The other process opens a name and writes, without closing."""
    fd = other.os.open(path, flags, 0o644)
    assert other.os.write(fd, data) == len(data)
    return fd


LOOKS = {
    "stat": os.stat,
    "lstat": os.lstat,
    "readlink": os.readlink,
    "open": lambda p: os.open(p, os.O_RDONLY),
    "open for writing": lambda p: os.open(p, os.O_WRONLY),
    "chmod": lambda p: os.chmod(p, 0o600),
    "utime": os.utime,
    "truncate": lambda p: os.truncate(p, 0),
    "unlink": os.unlink,
    "rename": lambda p: os.rename(p, f"{p}.moved"),
    "link": lambda p: os.link(p, f"{p}.link"),
    "getxattr": lambda p: os.getxattr(p, "user.kvcache.status"),
    "setxattr": lambda p: os.setxattr(p, "user.note", b"1"),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_unfinished_new_name_is_enoent_to_other_processes(mount, other, look):
    path = mount.path / "key"
    fd = begin(other, path)
    with kv.fails(errno.ENOENT):
        look(path)
    other.os.close(fd)
    assert kv.get(path) == DATA


def test_new_name_appears_whole_at_close(any_mount, other):
    path = any_mount.path / "key"
    fd = begin(other, path, DATA[:HALF])
    assert not kv.exists(path) and os.listdir(any_mount.path) == []
    assert other.os.write(fd, DATA[HALF:]) == len(DATA) - HALF
    assert not kv.exists(path) and os.listdir(any_mount.path) == []
    other.os.close(fd)
    assert os.stat(path).st_size == len(DATA)
    assert os.listdir(any_mount.path) == ["key"]
    assert kv.get(path) == DATA


def test_unfinished_new_name_is_there_for_its_own_process(any_mount, other):
    path = any_mount.path / "key"
    fd = begin(other, path)
    assert other.os.stat(path).st_size == len(DATA)
    assert other.kv.get(path) == DATA
    other.os.chmod(path, 0o600)
    other.os.utime(path, (10, 20))
    other.os.setxattr(path, "user.note", b"mine")
    assert other.kv.attribute(path, "status") == "PROCESSING"
    other.os.close(fd)
    found = os.stat(path)
    assert (found.st_mode & 0o777, found.st_mtime) == (0o600, 20)
    assert os.getxattr(path, "user.note") == b"mine"
    assert kv.attribute(path, "status") == "COMPLETE"


def test_other_threads_of_the_writer_see_its_unfinished_name(mount, other):
    path = mount.path / "key"
    fd = os.open(path, WRITE_NEW)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(kv.exists(path)))
    thread.start()
    thread.join()
    assert seen == [True]
    assert not other.kv.exists(path)
    os.close(fd)
    assert other.kv.exists(path)


def test_empty_object_is_published_at_close(mount, other):
    other.kv.put(mount.path / "empty", b"")
    assert os.stat(mount.path / "empty").st_size == 0
    assert kv.get(mount.path / "empty") == b""


def test_close_of_a_duplicate_publishes_nothing(any_mount, other):
    path = any_mount.path / "key"
    fd = begin(other, path, DATA[:HALF])
    other.os.close(other.os.dup(fd))
    assert not kv.exists(path)
    assert other.os.write(fd, DATA[HALF:]) == len(DATA) - HALF
    other.os.close(fd)
    assert kv.get(path) == DATA


def test_descriptor_inherited_by_a_child_keeps_the_name_hidden(mount, other):
    path = mount.path / "key"
    fd = os.open(path, WRITE_NEW)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=fd) as child:
        os.close(fd)
        assert not other.kv.exists(path)
        child.stdin.write(DATA)
        child.stdin.close()
        assert child.wait() == 0
    assert other.kv.get(path) == DATA


def test_shell_redirection_appears_whole(mount):
    path = mount.path / "key"
    script = f"{{ printf one; read -r _; printf two; }} > '{path}'; read -r _"
    with subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE) as shell:
        kv.eventually(lambda: kv.holds_open(shell.pid, path), what="the shell has opened its file")
        assert not kv.exists(path)
        shell.stdin.write(b"\n")
        shell.stdin.flush()
        kv.eventually(lambda: kv.exists(path), what="the key appears")
        assert kv.get(path) == b"onetwo"
        shell.stdin.write(b"\n")


def test_rename_before_close_publishes_all_bytes(any_mount, other):
    temporary, path = any_mount.path / "key.tmp", any_mount.path / "key"
    fd = begin(other, temporary)
    other.os.rename(temporary, path)
    assert os.stat(path).st_size == len(DATA)
    assert kv.get(path) == DATA
    assert os.listdir(any_mount.path) == ["key"]
    other.os.close(fd)
    assert kv.get(path) == DATA


@pytest.mark.parametrize("close_first", [True, False])
@pytest.mark.parametrize("directories", [("", ""), (".tmp", ""), ("a", "b")])
def test_rename_publishes_from_any_directory_over_any_target(any_mount, other, directories, close_first):
    source, target = (any_mount.path / d for d in directories)
    source.mkdir(exist_ok=True)
    target.mkdir(exist_ok=True)
    kv.put(target / "key", b"old")
    fd = begin(other, source / "key.tmp")
    if close_first:
        other.os.close(fd)
    assert kv.get(target / "key") == b"old"
    other.os.replace(source / "key.tmp", target / "key")
    assert kv.get(target / "key") == DATA
    assert not kv.exists(source / "key.tmp")


def test_link_while_open_publishes_all_bytes(any_mount, other):
    temporary, path = any_mount.path / "key.tmp", any_mount.path / "key"
    fd = begin(other, temporary)
    other.os.fsync(fd)
    other.os.link(temporary, path)
    assert kv.get(path) == DATA
    with kv.fails(errno.EEXIST):
        other.os.link(temporary, path)
    other.os.unlink(temporary)
    other.os.close(fd)
    assert kv.get(path) == DATA
    assert os.listdir(any_mount.path) == ["key"]
    assert os.stat(path).st_nlink == 1


def test_link_after_close_publishes_under_both_names(mount, other):
    temporary, path = mount.path / "key.tmp", mount.path / "key"
    other.kv.put(temporary, DATA)
    other.os.link(temporary, path)
    assert os.stat(path).st_ino == os.stat(temporary).st_ino
    assert kv.get(path) == DATA


def test_o_tmpfile_is_published_by_linkat(any_mount, other):
    any_mount.needs_libfuse((3, 17), "O_TMPFILE")
    path = any_mount.path / "key"
    fd = begin(other, any_mount.path, flags=os.O_TMPFILE | os.O_RDWR)
    assert os.listdir(any_mount.path) == []
    other.syscalls.link_descriptor(fd, path)
    assert os.stat(path).st_size == len(DATA)
    assert kv.get(path) == DATA
    other.os.close(fd)
    assert kv.get(path) == DATA


@pytest.mark.parametrize("death", ["close", "SIGKILL"])
def test_o_tmpfile_without_a_name_frees_its_bytes(mount, other, death):
    mount.needs_libfuse((3, 17), "O_TMPFILE")
    before = mount.free_bytes()
    fd = begin(other, mount.path, flags=os.O_TMPFILE | os.O_RDWR | os.O_EXCL)
    assert mount.free_bytes() < before
    if death == "close":
        other.os.close(fd)
    else:
        other.kill()
    kv.eventually(lambda: mount.free_bytes() >= before, what="the bytes are free")


def test_exclusive_create_fails_while_another_process_is_writing_the_name(any_mount, other):
    path = any_mount.path / "lock"
    fd = begin(other, path, flags=WRITE_NEW | os.O_EXCL)
    with kv.fails(errno.EEXIST):
        os.open(path, WRITE_NEW | os.O_EXCL)
    other.os.close(fd)
    with kv.fails(errno.EEXIST):
        os.open(path, WRITE_NEW | os.O_EXCL)


@pytest.mark.concurrency
def test_exclusive_create_has_one_winner(mount, spawn):
    contenders = [spawn() for _ in range(8)]
    for turn in range(20):
        path = mount.path / f"lock{turn}"
        for process in contenders:
            process.begin("os.open", path, WRITE_NEW | os.O_EXCL)
        winners = []
        for process in contenders:
            try:
                winners.append((process, process.result()))
            except FileExistsError:
                pass
        assert len(winners) == 1
        winners[0][0].os.close(winners[0][1])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM], ids=lambda n: n.name)
def test_writer_killed_by_a_signal_publishes_nothing_and_its_bytes_are_freed(any_mount, other, number):
    path = any_mount.path / "key"
    before = any_mount.free_bytes()
    begin(other, path)
    assert any_mount.free_bytes() < before
    other.resource.setrlimit(4, (0, 0))  # RLIMIT_CORE
    other.kill(number)
    assert not kv.exists(path)
    kv.eventually(lambda: any_mount.free_bytes() >= before, what="the bytes are free")
    assert not kv.exists(path) and os.listdir(any_mount.path) == []
    kv.put(path, b"next")
    assert kv.get(path) == b"next"


def test_writer_with_threads_killed_by_a_signal_publishes_nothing(mount, other):
    path = mount.path / "key"
    other.kv.start_idle_threads(4)
    begin(other, path)
    other.kill()
    kv.eventually(lambda: mount.free_bytes() == os.statvfs(mount.path).f_blocks * 4096, what="the bytes are free")
    assert not kv.exists(path)


def test_writer_that_exits_without_close_publishes(mount, other):
    path = mount.path / "key"
    begin(other, path)
    assert other.exit() == 0
    assert kv.get(path) == DATA


def test_killed_reader_harms_nobody(mount, other):
    path = mount.path / "key"
    kv.put(path, DATA)
    other.os.open(path, os.O_RDONLY)
    other.os.open(path, os.O_RDWR)
    other.kill()
    assert kv.get(path) == DATA


def test_unfinished_name_removed_by_its_writer_stays_away(mount, other):
    path = mount.path / "key"
    before = mount.free_bytes()
    fd = begin(other, path, flags=os.O_RDWR | os.O_CREAT)
    other.os.unlink(path)
    assert not other.kv.exists(path)
    assert other.kv.read_all(fd) == DATA
    other.os.close(fd)
    kv.eventually(lambda: mount.free_bytes() >= before, what="the bytes are free")
    assert not kv.exists(path)


def test_directory_renamed_under_a_writer_gets_the_key(mount, other):
    old, new = mount.mkdir("old"), mount.path / "new"
    fd = begin(other, old / "key")
    old.rename(new)
    other.os.close(fd)
    assert kv.get(new / "key") == DATA
    assert not kv.exists(old)


def test_miss_that_was_cached_ends_with_the_publish(mount, other):
    names = [f"k{i}" for i in range(512)]
    for _ in range(2):
        assert kv.present(mount.path, names) == []
    for name in names:
        other.kv.put(mount.path / name, b"x")
        assert os.stat(mount.path / name).st_size == 1


def test_miss_asked_again_while_the_writer_is_at_work_ends_with_the_publish(mount, other):
    for i in range(100):
        path = mount.path / f"k{i}"
        assert not kv.exists(path)
        fd = begin(other, path, b"half")
        assert not kv.exists(path)
        other.os.write(fd, b"rest")
        other.os.close(fd)
        assert kv.get(path) == b"halfrest"


def test_size_is_right_everywhere_at_once_after_a_replacement(mount, other):
    """aibrix checks its own store: replace, then exists and stat at once, here and elsewhere."""
    path = mount.path / "key"
    for size in (1000, 5000, 200):
        other.kv.put(f"{path}.tmp", kv.pattern(size))
        other.os.replace(f"{path}.tmp", path)
        assert other.os.stat(path).st_size == size
        assert os.stat(path).st_size == size


@pytest.mark.concurrency
@pytest.mark.parametrize("how", ["rename after close", "rename before close", "in place"])
def test_open_that_races_with_a_replacement_never_misses(any_mount, spawn, how):
    path = any_mount.path / "key"
    kv.put(path, bytes(8192))
    writer = spawn()
    if how == "in place":
        writer.begin("kv.replace_in_place", path, 400)
    else:
        writer.begin("kv.replace_by_rename", path, 400, how == "rename after close")
    reads = 0
    while not writer.answered():
        data = kv.get(path)
        assert len(data) == 8192 and len(set(data)) == 1, "torn"
        assert os.stat(path).st_size == 8192
        reads += 1
    writer.result()
    assert reads > 0


@pytest.mark.concurrency
def test_several_processes_that_store_the_same_new_page_all_find_it(mount, spawn):
    writers = [spawn() for _ in range(6)]
    for turn in range(30):
        path = mount.path / f"page{turn}"
        for w in writers:
            w.begin("kv.replace_by_rename", path, 1, True)
        for w in writers:
            w.result()
            assert len(kv.get(path)) == 8192
            assert w.kv.exists(path)


def test_two_writers_of_one_temporary_name_leave_one_intact_image(any_mount, spawn):
    temporary, path = any_mount.path / "key.tmp", any_mount.path / "key"
    images = [kv.pattern(200_000, seed) for seed in (1, 2)]
    one, two = spawn(), spawn()
    fds = [begin(w, temporary, image[:90_000], WRITE_NEW | os.O_TRUNC)
           for w, image in zip((one, two), images, strict=True)]
    for w, fd, image in zip((one, two), fds, images, strict=True):
        w.os.write(fd, image[90_000:])
    for w, fd in zip((one, two), fds, strict=True):
        w.os.close(fd)
        try:
            w.os.rename(temporary, path)
        except FileNotFoundError:
            assert w is two, "the first must find its name"
        assert kv.get(path) in images


def test_two_openers_without_truncation_share_one_file(any_mount, spawn):
    path = any_mount.path / "slab"
    one, two = spawn(), spawn()
    first, second = (w.os.open(path, os.O_RDWR | os.O_CREAT, 0o644) for w in (one, two))
    one.os.pwrite(first, b"one", 0)
    two.os.pwrite(second, b"two", 4096)
    assert two.os.pread(second, 3, 0) == b"one"
    assert one.os.pread(first, 3, 4096) == b"two"
    one.os.close(first)
    two.os.close(second)
    assert kv.get(path) == b"one".ljust(4096, b"\0") + b"two"


def test_sixteen_descriptors_of_one_process_share_one_file(any_mount, other):
    path = any_mount.path / "hicache.0.bin"
    fds = [os.open(path, os.O_RDWR | os.O_CREAT, 0o644) for _ in range(16)]
    for i, fd in enumerate(fds):
        os.pwrite(fd, bytes([i]) * 4096, i * 4096)
    for fd in fds:
        assert os.pread(fd, 16 * 4096, 0) == b"".join(bytes([i]) * 4096 for i in range(16))
        os.close(fd)
    assert other.kv.get(path) == b"".join(bytes([i]) * 4096 for i in range(16))


def test_fsync_of_an_unfinished_file_publishes_nothing(mount, other):
    path = mount.path / "key"
    fd = begin(other, path)
    other.os.fsync(fd)
    other.os.fdatasync(fd)
    assert not kv.exists(path)
    other.os.close(fd)
    assert kv.get(path) == DATA


@pytest.mark.parametrize("how", ["SIGTERM", "kill9"])
def test_unfinished_object_does_not_survive_restart(mount, other, how):
    before = mount.free_bytes()
    fd = begin(other, mount.path / "key")
    other.os.close(other.os.dup(fd))  # as a shell does before it writes
    if how == "SIGTERM":
        mount.stop()
    else:
        mount.kill9()
    mount.start()
    assert os.listdir(mount.path) == []
    other.finish()  # whose descriptor keeps the bytes
    assert mount.free_bytes() >= before


def test_mapping_keeps_the_version_unfinished_until_it_is_gone(any_mount, other):
    """LMCache's GDS fallback: ftruncate, map, close the descriptor, store, unmap, rename."""
    temporary, path = any_mount.path / "key.tmp", any_mount.path / "key"
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    os.ftruncate(fd, len(DATA))
    mapping = syscalls.Mapping(fd, len(DATA))
    os.close(fd)
    assert not other.kv.exists(temporary)
    mapping.store(0, DATA)
    mapping.close()
    os.rename(temporary, path)
    assert other.kv.get(path) == DATA


def test_name_appears_with_all_that_was_stored_when_the_last_mapping_goes(any_mount, other):
    path = any_mount.path / "key"
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    os.ftruncate(fd, len(DATA))
    mappings = [syscalls.Mapping(fd, len(DATA)) for _ in range(2)]
    os.close(fd)
    reader = os.open(path, os.O_RDONLY)  # has its own descriptor, which is no reason to wait
    mappings[0].store(0, DATA)
    mappings[0].close()
    assert kv.read_all(reader) == DATA
    assert not other.kv.exists(path)
    mappings[1].close()
    kv.eventually(lambda: other.kv.exists(path), what="the key appears")
    assert other.kv.get(path) == DATA
    assert kv.read_all(reader) == DATA
    os.close(reader)


@pytest.mark.concurrency
def test_mode_set_while_a_version_is_being_published_is_kept(mount, other):
    """Closing has returned before the version is published; the mode is set at some moment of that."""
    names = [mount.path / f"key{n}" for n in range(600)]
    for n, name in enumerate(names):
        os.close(os.open(name, WRITE_NEW, 0o600))
        for _ in range(n % 150):
            os.getppid()
        os.chmod(name, 0o644)
    assert {other.os.stat(name).st_mode & 0o777 for name in names} == {0o644}
    mount.restart()
    assert {os.stat(name).st_mode & 0o777 for name in names} == {0o644}


def test_unfinished_version_is_kept_from_who_comes_upon_it_without_its_name(any_mount, other, spawn):
    """As those do who look a cached miss up while the create replaces it."""
    fd = begin(other, any_mount.path / "key")
    path = f"/proc/{other.pid}/fd/{fd}"
    stranger = spawn()
    for look in (stranger.os.stat, stranger.kv.get, os.stat, kv.get):
        with kv.fails(errno.ESTALE):
            look(path)
    assert other.kv.get(f"/proc/self/fd/{fd}") == DATA
    other.os.close(fd)


def test_child_works_on_the_unfinished_file_that_it_has_inherited(any_mount):
    path = any_mount.path / "key"
    script = f"exec 3<>'{path}'; printf 'more than that' >&3; printf 'some bytes' >/dev/fd/3; stat -Lc %s /dev/fd/3; cat /dev/fd/3"
    said = subprocess.run(["sh", "-c", script], stdout=subprocess.PIPE, check=True).stdout
    assert said == b"10\nsome bytes"
    assert kv.get(path) == b"some bytes"


@contextlib.contextmanager
def commits_held_up(mount, spawn):
    """A transaction of somebody else: the daemon's next one waits for it, and those that come meanwhile are one batch."""
    directory, somebody = mount.mkdir("held"), spawn()
    database = sqlite3.connect(mount.state / "kvcachefs.db", isolation_level=None)
    database.execute("BEGIN IMMEDIATE")
    somebody.begin("os.mkdir", directory / "first")
    tasks = pathlib.Path(f"/proc/{mount.process.pid}/task")
    kv.eventually(lambda: any("nanosleep" in path.read_text() for path in tasks.glob("*/wchan")), what="SQLite waits")
    yield
    database.close()
    somebody.result()


@pytest.mark.concurrency
@pytest.mark.parametrize("end", ["read", "rename"])
def test_version_that_comes_to_its_end_twice_at_once_is_published_once(mount, spawn, other, end):
    """As when its writer goes on with it right after the close."""
    path, final = mount.path / "key", mount.path / ("key" if end == "read" else "final")
    nr_open = lambda: kv.counter(mount.path, "open_handles")
    kv.put(path, b"before")
    kv.put(final, b"before")
    fd = begin(other, path, flags=os.O_WRONLY | os.O_TRUNC)
    with commits_held_up(mount, spawn):
        other.os.close(fd)
        kv.eventually(lambda: nr_open() == 0, what="the first publishing is under way")
        if end == "read":
            assert other.kv.get(path) == DATA
        else:
            other.begin("os.rename", path, final)
        kv.eventually(lambda: nr_open() == 0, what="the second publishing is under way")
    if end == "rename":
        other.result()
    assert spawn().kv.get(final) == DATA
    mount.restart("kill9")
    assert kv.get(final) == DATA


def test_executing_a_program_with_an_unfinished_key_open_ends(any_mount, other):
    """Exec closes the descriptor while the kernel holds locks that reading of the process in /proc waits for."""
    path = any_mount.path / "key"
    fd = begin(other, path, flags=WRITE_NEW | os.O_CLOEXEC)
    child = other.os.posix_spawn("/bin/true", ["true"], {})
    assert other.os.waitpid(child, 0)[1] == 0
    assert not kv.exists(path)
    other.os.close(fd)
    assert kv.get(path) == DATA
