# SPDX-License-Identifier: Apache-2.0
"""Locks between processes: flock, fcntl, open file description locks."""
import errno
import fcntl
import os
import subprocess

import kv
import pytest
import syscalls

WRITE = os.O_RDWR | os.O_CREAT


@pytest.fixture(params=["close", "open"])
def lock(request, mount):
    """A lock file in a directory of either publish mode."""
    path = mount.mkdir("locks", publish=request.param) / "lock"
    kv.put(path, b"x")
    return path


def test_exclusive_flock_excludes_and_shared_does_not(lock, spawn):
    one, two = spawn(), spawn()
    first, second = one.os.open(lock, os.O_RDONLY), two.os.open(lock, os.O_RDONLY)
    one.fcntl.flock(first, fcntl.LOCK_SH)
    two.fcntl.flock(second, fcntl.LOCK_SH | fcntl.LOCK_NB)
    with kv.fails(errno.EWOULDBLOCK):
        two.fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    one.fcntl.flock(first, fcntl.LOCK_UN)
    two.fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    for kind in (fcntl.LOCK_SH, fcntl.LOCK_EX):
        with kv.fails(errno.EWOULDBLOCK):
            one.fcntl.flock(first, kind | fcntl.LOCK_NB)


def test_waiting_flock_is_granted_when_the_holder_unlocks(lock, spawn):
    one, two = spawn(), spawn()
    first, second = one.os.open(lock, WRITE), two.os.open(lock, WRITE)
    one.fcntl.flock(first, fcntl.LOCK_EX)
    two.begin("fcntl.flock", second, fcntl.LOCK_EX)
    assert not two.answered(0.05)
    one.fcntl.flock(first, fcntl.LOCK_UN)
    two.result(5)
    with kv.fails(errno.EWOULDBLOCK):
        one.fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_flock_belongs_to_the_open_file_and_not_to_the_process(lock):
    one, two = os.open(lock, os.O_RDONLY), os.open(lock, os.O_RDONLY)
    fcntl.flock(one, fcntl.LOCK_EX)
    with kv.fails(errno.EWOULDBLOCK):
        fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB)
    copy = os.dup(one)
    os.close(one)
    with kv.fails(errno.EWOULDBLOCK):
        fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(copy)
    kv.eventually(lambda: kv.try_flock(two), what="the lock is free after the last close")
    os.close(two)


@pytest.mark.parametrize("take", ["flock", "lockf", "ofd"])
def test_lock_is_free_after_its_holder_was_killed(lock, spawn, take):
    one, two = spawn(), spawn()
    first, second = one.os.open(lock, WRITE), two.os.open(lock, WRITE)
    one.kv.take_lock(first, take)
    with kv.fails(errno.EWOULDBLOCK, errno.EACCES):
        two.kv.take_lock(second, take)
    one.kill()
    kv.eventually(lambda: two.kv.try_lock(second, take), what="the lock is free")


@pytest.mark.parametrize("mode", ["w", "a", "r+"])
def test_lock_file_idiom_of_open_and_flock_excludes(lock, spawn, mode):
    """with open(name, "w") as f: flock(f): the opener that truncates must meet the same lock."""
    one, two, three = spawn(), spawn(), spawn()
    first = one.kv.open_mode(lock, mode)
    one.fcntl.flock(first, fcntl.LOCK_EX)
    second = two.kv.open_mode(lock, mode)
    with kv.fails(errno.EWOULDBLOCK):
        two.fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    third = three.os.open(lock, os.O_RDONLY)
    with kv.fails(errno.EWOULDBLOCK):
        three.fcntl.flock(third, fcntl.LOCK_SH | fcntl.LOCK_NB)
    one.os.close(first)
    kv.eventually(lambda: two.kv.try_flock(second), what="the lock is free after the close")


def test_lock_file_idiom_excludes_on_a_name_that_was_not_there(mount, spawn):
    path = mount.path / "new.lock"
    one, two = spawn(), spawn()
    first = one.kv.open_mode(path, "w")
    one.fcntl.flock(first, fcntl.LOCK_EX)
    second = two.kv.open_mode(path, "w")
    with kv.fails(errno.EWOULDBLOCK):
        two.fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    one.os.close(first)
    kv.eventually(lambda: two.kv.try_flock(second), what="the lock is free after the close")


@pytest.mark.concurrency
def test_counter_under_flock_loses_no_count(lock, spawn):
    counter = lock.parent / "counter"
    kv.put(counter, b"0")
    workers = [spawn() for _ in range(4)]
    for w in workers:
        w.begin("kv.count_under_flock", lock, counter, 25)
    for w in workers:
        w.result()
    assert kv.get(counter) == b"100"


@pytest.mark.concurrency
@pytest.mark.parametrize("take", ["flock", "lockf", "ofd"])
def test_processes_that_wait_for_a_lock_do_not_hang_the_mount(mount, spawn, take):
    path = mount.path / "lock"
    kv.put(path, b"x")
    holder = spawn()
    kept = holder.os.open(path, WRITE)
    holder.kv.take_lock(kept, take)
    waiting = [spawn() for _ in range(24)]
    for w in waiting:
        w.begin("kv.wait_for_lock", path, take)
    for n in range(50):
        kv.put(mount.path / f"k{n}", b"alive")
        assert kv.get(mount.path / f"k{n}") == b"alive"
    assert not any(w.answered() for w in waiting)
    holder.os.close(kept)
    for w in waiting:
        w.result(20)


def test_killed_waiter_gives_up_its_place(lock, spawn):
    one, two, three = spawn(), spawn(), spawn()
    first = one.os.open(lock, WRITE)
    one.fcntl.flock(first, fcntl.LOCK_EX)
    two.begin("kv.wait_for_lock", lock, "flock")
    assert not two.answered(0.05)
    two.kill()
    third = three.os.open(lock, WRITE)
    one.fcntl.flock(first, fcntl.LOCK_UN)
    kv.eventually(lambda: three.kv.try_flock(third), what="the lock is free")


def test_record_locks_of_two_processes(lock, spawn):
    one, two = spawn(), spawn()
    first, second = one.os.open(lock, WRITE), two.os.open(lock, WRITE)
    one.fcntl.lockf(first, fcntl.LOCK_EX, 100, 0)
    two.fcntl.lockf(second, fcntl.LOCK_EX | fcntl.LOCK_NB, 100, 100)
    with kv.fails(errno.EAGAIN, errno.EACCES):
        two.fcntl.lockf(second, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 99)
    one.fcntl.lockf(first, fcntl.LOCK_UN, 50, 50)
    two.fcntl.lockf(second, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 99)
    with kv.fails(errno.EAGAIN, errno.EACCES):
        two.fcntl.lockf(second, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 49)


def test_open_file_description_locks_exclude_inside_one_process(lock):
    one, two = os.open(lock, WRITE), os.open(lock, WRITE)
    syscalls.ofd_lock(one, syscalls.F_OFD_SETLK, fcntl.F_WRLCK)
    with kv.fails(errno.EAGAIN, errno.EACCES):
        syscalls.ofd_lock(two, syscalls.F_OFD_SETLK, fcntl.F_RDLCK)
    os.close(one)
    kv.eventually(lambda: kv.try_lock(two, "ofd"), what="the lock is free after the close")
    os.close(two)


def test_flock_program_runs_its_command(lock):
    done = subprocess.run(["flock", lock, "echo", "locked"], capture_output=True, text=True, check=True)
    assert done.stdout == "locked\n"
