# SPDX-License-Identifier: Apache-2.0
"""Eviction: whole objects, the right ones, never what is open, pinned or in an evict=off directory."""
import errno
import os
import pathlib
import runpy

import kv
import pytest
import syscalls

BLOCK = 16_384
ROOM_100 = str(100 * BLOCK)
TOOLS = pathlib.Path(__file__).resolve().parent.parent / "tools"
make_trace = runpy.run_path(str(TOOLS / "trace-gen"))["requests"]
Client = runpy.run_path(str(TOOLS / "trace-replay"))["Directory"]


def names(prefix, count):
    return [f"{prefix}{n}" for n in range(count)]


def put_blocks(directory, prefix, count, size=BLOCK):
    for n in range(count):
        kv.put(directory / f"{prefix}{n}", kv.pattern(size, n))


def listed(mount):
    return set(os.listdir(mount.path))


@pytest.mark.options(ram_size="4M")
@pytest.mark.parametrize("size", [4096, BLOCK, 65_536, kv.MiB])
def test_exactly_as_many_objects_fit_as_the_budget_holds(any_mount, size):
    room = 4 * kv.MiB // size
    put_blocks(any_mount.path, "k", room, size)
    kv.eventually(lambda: listed(any_mount) == set(names("k", room)), what="all are listed")
    assert any_mount.free_bytes() == 0
    kv.put(any_mount.path / "one more", kv.pattern(size))
    kv.eventually(lambda: len(listed(any_mount)) == room, what="one object less")
    assert "one more" in listed(any_mount)
    assert kv.get(any_mount.path / "one more") == kv.pattern(size)


@pytest.mark.options(ram_size="4M")
def test_evicted_key_is_a_miss_and_nothing_else(any_mount, other):
    put_blocks(any_mount.path, "old", 200)
    other.kv.put_many(any_mount.path, "new", 256, bytes(BLOCK))
    kv.eventually(lambda: len(listed(any_mount)) == 256, what="room for 256")
    assert not set(names("old", 200)) & listed(any_mount), "another prompt's blocks, never read, go first"
    for name in names("old", 200):
        path = any_mount.path / name
        for look in (os.stat, lambda p: os.open(p, os.O_RDONLY), lambda p: os.open(p, os.O_RDWR), os.unlink,
                     lambda p: os.getxattr(p, "user.kvcache.tier"), lambda p: os.truncate(p, 1)):
            with kv.fails(errno.ENOENT):
                look(path)
    kv.put(any_mount.path / "old0", b"back again")
    assert other.kv.get(any_mount.path / "old0") == b"back again"


@pytest.mark.options(ram_size="4M")
def test_eviction_changes_the_directory_it_takes_from(mount):
    taken_from = mount.mkdir("old")
    put_blocks(taken_from, "k", 10)
    kv.eventually(lambda: len(os.listdir(taken_from)) == 10)
    before = os.stat(taken_from).st_mtime_ns
    put_blocks(mount.mkdir("new"), "k", 256)
    kv.eventually(lambda: not os.listdir(taken_from), what="the first keys are gone")
    kv.eventually(lambda: os.stat(taken_from).st_mtime_ns > before, what="mtime of the directory has moved")


# ---- which ones

def run(mount, prefix, count):
    """One request of a client: look up in order, read the hits, create the rest; returns the prefix hits."""
    return Client(mount.path, BLOCK).ask([(hash_of(prefix) << 16) + n for n in range(count)])


def hash_of(prefix):
    return int.from_bytes(prefix.encode(), "big") & 0xffff


@pytest.mark.options(ram_size=ROOM_100)
def test_head_of_a_prompt_survives_another_prompt(any_mount):
    assert [run(any_mount, prefix, 60) for prefix in "aba"] == [0, 0, 40]


@pytest.mark.options(ram_size=ROOM_100)
def test_prompt_that_was_used_again_survives_prompts_used_once(any_mount):
    assert [run(any_mount, "a", 20) for _ in range(3)] == [0, 20, 20]
    assert [run(any_mount, f"once{n}", 30) for n in range(10)] == [0] * 10
    assert run(any_mount, "a", 20) == 20


@pytest.mark.options(ram_size=ROOM_100)
def test_prompt_longer_than_the_memory_keeps_its_head(any_mount):
    assert sum(run(any_mount, "a", 150) for _ in range(3)) == 198


@pytest.mark.options(ram_size=ROOM_100)
def test_what_was_used_again_is_remembered_over_a_restart(mount):
    for _ in range(3):
        run(mount, "a", 20)
    mount.restart()
    for n in range(10):
        run(mount, f"once{n}", 30)
    assert run(mount, "a", 20) == 20


TRACES = [({"seconds": 600, "rate": 0.8}, 585, .535), ({"seconds": 600, "rate": 0.8}, 1171, .708),
          ({"seconds": 900, "rate": 0.08, "kinds": "agent:100"}, 242, .46),
          ({"seconds": 1500, "rate": 1, "kinds": "chat:80,doc:20"}, 2041, .285)]


@pytest.mark.stress
@pytest.mark.timeout(300)
@pytest.mark.parametrize("arguments, room, want", TRACES, ids=["chat-585", "chat-1171", "agent-242", "doc-2041"])
def test_prefix_hit_rate_of_a_trace(launch, arguments, room, want):
    mount = launch(ram_size=room * BLOCK)
    client, prompts = Client(mount.path, BLOCK), [blocks for _, blocks, _ in make_trace(seed=1, **arguments)]
    assert sum(map(client.ask, prompts)) / sum(map(len, prompts)) >= want


@pytest.mark.options(ram_size=ROOM_100, lookup_grace="1h")
def test_key_that_was_looked_up_is_spared(mount, other):
    put_blocks(mount.path, "k", 100)
    spared = [f"k{n}" for n in range(0, 100, 2)]
    assert other.kv.present(mount.path, spared) == spared
    put_blocks(mount.path, "new", 50)
    assert set(spared) <= listed(mount)


@pytest.mark.options(ram_size=ROOM_100, lookup_grace="1h")
def test_grace_ends_when_nothing_else_can_go(mount, other):
    put_blocks(mount.path, "k", 100)
    assert len(other.kv.present(mount.path, names("k", 100))) == 100
    put_blocks(mount.path, "new", 50)
    kv.eventually(lambda: len(listed(mount)) == 100, what="room for a hundred")


# ---- which ones not

def fill_with_what_stays(mount):
    """All 4 MiB go to keys that are not evicted: everything else that may go has to."""
    put_blocks(mount.mkdir("stays", evict="off"), "s", 256)
    kv.eventually(lambda: mount.free_bytes() == 0, what="the memory holds the budget")


@pytest.mark.options(ram_size="4M")
def test_open_object_is_never_evicted(any_mount, spawn):
    one, two = spawn(), spawn()
    put_blocks(any_mount.path, "held", 4)
    fds = [process.os.open(any_mount.path / f"held{n}", os.O_RDONLY) for n, process in enumerate((one, one, two, two))]
    put_blocks(any_mount.path, "k", 1000)
    assert set(names("held", 4)) <= listed(any_mount)
    for n, process in enumerate((one, one, two, two)):
        assert process.kv.read_all(fds[n]) == kv.pattern(BLOCK, n)
        assert kv.get(any_mount.path / f"held{n}") == kv.pattern(BLOCK, n)
        process.os.close(fds[n])
    fill_with_what_stays(any_mount)
    kv.eventually(lambda: not set(names("held", 4)) & listed(any_mount), what="closed, they go like any other")


@pytest.mark.options(ram_size="4M")
def test_object_under_construction_is_never_evicted(any_mount, other):
    fd = other.os.open(any_mount.path / "slow", os.O_WRONLY | os.O_CREAT, 0o644)
    other.os.write(fd, kv.pattern(BLOCK, 1))
    put_blocks(any_mount.path, "k", 1000)
    other.os.write(fd, b"end")
    other.os.close(fd)
    assert kv.get(any_mount.path / "slow") == kv.pattern(BLOCK, 1) + b"end"


@pytest.mark.options(ram_size="4M")
def test_pinned_object_is_never_evicted_until_it_is_unpinned(mount):
    put_blocks(mount.path, "p", 4)
    for name in names("p", 4):
        os.setxattr(mount.path / name, "user.kvcache.pin", b"hard")
    put_blocks(mount.path, "k", 1000)
    mount.restart("kill9")
    put_blocks(mount.path, "l", 1000)
    assert set(names("p", 4)) <= listed(mount)
    for n in range(4):
        assert kv.get(mount.path / f"p{n}") == kv.pattern(BLOCK, n)
        os.setxattr(mount.path / f"p{n}", "user.kvcache.pin", b"none")
    fill_with_what_stays(mount)
    kv.eventually(lambda: not set(names("p", 4)) & listed(mount), what="unpinned, they go like any other")


@pytest.mark.options(ram_size="4M")
def test_pin_of_a_directory_holds_for_what_is_created_in_it(mount):
    pinned = mount.mkdir("pinned", pin="hard")
    put_blocks(pinned, "p", 4)
    assert kv.attribute(pinned / "p0", "pin") == "hard"
    put_blocks(mount.path, "k", 1000)
    assert len(os.listdir(pinned)) == 4


@pytest.mark.options(ram_size="4M")
def test_keys_of_an_evict_off_directory_stay_while_others_go(any_mount):
    keep = any_mount.mkdir("keep", evict="off")
    put_blocks(keep, "k", 64)
    put_blocks(any_mount.path, "c", 1000)
    assert len(os.listdir(keep)) == 64
    for n in range(64):
        assert kv.get(keep / f"k{n}") == kv.pattern(BLOCK, n)
    put_blocks(keep, "more", 128)
    assert len(os.listdir(keep)) == 192
    kv.eventually(lambda: len(os.listdir(any_mount.path)) == 1 + 64, what="the rest has gone to make room")


# ---- full

def fill(directory, size):
    """Put objects of one write until the first that fails, which must be ENOSPC at the open or the first byte."""
    count = 0
    while True:
        path = directory / f"k{count}"
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except OSError as error:
            assert error.errno == errno.ENOSPC
            assert not path.exists()
            return count
        try:
            kv.write_all(fd, kv.pattern(size, count))
        except OSError as error:
            assert error.errno == errno.ENOSPC
            assert os.fstat(fd).st_size == 0
            os.unlink(path)
            return count
        finally:
            os.close(fd)
        count += 1
        assert count < 10_000, "no end"


@pytest.mark.options(ram_size="64M")
@pytest.mark.parametrize("size", [100_000, kv.MiB, 16 * kv.MiB])
def test_full_evict_off_directory_says_enospc_at_once_and_keeps_what_it_has(any_mount, size):
    keep = any_mount.mkdir("keep", evict="off")
    count = fill(keep, size)
    taken = (size + 4095) // 4096 * 4096
    assert 64 * kv.MiB // taken <= count <= 64 * kv.MiB // taken + 1
    for n in range(count):
        assert kv.get(keep / f"k{n}") == kv.pattern(size, n)
    assert len(os.listdir(keep)) == count
    os.unlink(keep / "k0")
    kv.put(keep / "k0", kv.pattern(size, 0))
    assert kv.get(keep / "k0") == kv.pattern(size, 0)


@pytest.mark.options(ram_size="16M")
def test_overwrite_in_a_full_evict_off_directory_keeps_the_old_version(any_mount):
    keep = any_mount.mkdir("keep", evict="off")
    count = fill(keep, kv.MiB)
    with kv.fails(errno.ENOSPC):
        kv.put(keep / "k0", kv.pattern(kv.MiB, 99))
    for n in range(count):
        assert kv.get(keep / f"k{n}") == kv.pattern(kv.MiB, n)


@pytest.mark.options(ram_size="16M", evict="off")
def test_evict_off_may_be_the_default_of_the_mount(mount):
    assert kv.attribute(mount.path, "evict") == "off"
    assert fill(mount.path, kv.MiB) in (16, 17)
    cache = mount.path / "k0"
    os.unlink(cache)
    directory = mount.mkdir("cache", evict="on")
    for n in range(20):
        kv.put(directory / f"c{n}", kv.pattern(500_000, n))
    kv.eventually(lambda: 1 <= len(os.listdir(directory)) <= 2, what="only what fits is left")


@pytest.mark.options(ram_size="4M")
def test_memory_full_of_pinned_objects_is_enospc(mount):
    pinned = mount.mkdir("pinned", pin="hard")
    assert fill(pinned, BLOCK) in (256, 257)
    with kv.fails(errno.ENOSPC):
        kv.put(mount.path / "key", kv.pattern(BLOCK))
    assert not kv.exists(mount.path / "key")
    os.unlink(pinned / "k0")
    kv.put(mount.path / "key", kv.pattern(BLOCK))


@pytest.mark.options(ram_size="4M")
def test_memory_full_of_open_objects_is_enospc(mount, other):
    put_blocks(mount.path, "k", 256)
    fds = [other.os.open(mount.path / name, os.O_RDONLY) for name in names("k", 256)]
    with kv.fails(errno.ENOSPC):
        kv.put(mount.path / "key", kv.pattern(BLOCK))
    for n, fd in enumerate(fds):
        assert other.kv.read_all(fd) == kv.pattern(BLOCK, n)
        other.os.close(fd)
    kv.put(mount.path / "key", kv.pattern(BLOCK))


@pytest.mark.options(ram_size="16M")
def test_object_larger_than_the_memory_is_refused_and_harms_nothing(any_mount, other):
    keep = any_mount.mkdir("keep", evict="off")
    kv.put(keep / "key", kv.pattern(kv.MiB))
    fd = os.open(any_mount.path / "giant", os.O_WRONLY | os.O_CREAT)
    with kv.fails(errno.ENOSPC):
        for _ in range(256):
            kv.write_all(fd, kv.pattern(kv.MiB))
    os.unlink(any_mount.path / "giant")
    os.close(fd)
    assert other.kv.get(keep / "key") == kv.pattern(kv.MiB)
    kv.eventually(lambda: any_mount.free_bytes() == 15 * kv.MiB, what="the bytes are free")
    other.kv.put(any_mount.path / "next", kv.pattern(kv.MiB))
    assert kv.get(any_mount.path / "next") == kv.pattern(kv.MiB)


@pytest.mark.options(ram_size="16M")
def test_object_that_passes_the_budget_but_not_the_hard_limit_is_refused_at_its_close(any_mount, other):
    key, temporary = any_mount.path / "key", any_mount.path / "temporary"
    kv.put(key, kv.pattern(kv.MiB))
    for path in (key, temporary):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        kv.write_all(fd, bytes(16 * kv.MiB + 1))
        with kv.fails(errno.EFBIG):
            os.rename(path, any_mount.path / "elsewhere")
        with kv.fails(errno.EFBIG):
            os.close(fd)
    kv.eventually(lambda: any_mount.free_bytes() >= 15 * kv.MiB, what="the bytes are free")
    assert listed(any_mount) <= {"key"}
    if other.kv.exists(key):
        assert other.kv.get(key) == kv.pattern(kv.MiB)
    kv.put(temporary, kv.pattern(16 * kv.MiB))
    assert other.kv.get(temporary) == kv.pattern(16 * kv.MiB)


@pytest.mark.options(ram_size="16M")
def test_o_tmpfile_that_passes_the_budget_gets_no_name(any_mount):
    any_mount.needs_libfuse((3, 17), "O_TMPFILE")
    fd = os.open(any_mount.path, os.O_TMPFILE | os.O_RDWR)
    kv.write_all(fd, bytes(20 * kv.MiB))
    with kv.fails(errno.EFBIG):
        syscalls.link_descriptor(fd, any_mount.path / "key")
    os.close(fd)
    kv.eventually(lambda: any_mount.free_bytes() == 16 * kv.MiB, what="the bytes are free")
    assert listed(any_mount) == set()


@pytest.mark.options(ram_size="16M")
def test_overwriting_does_not_need_twice_the_memory_forever(mount):
    for n in range(100):
        kv.put(mount.path / "key", kv.pattern(6 * kv.MiB, n % 3))
    assert kv.get(mount.path / "key") == kv.pattern(6 * kv.MiB, 0)
