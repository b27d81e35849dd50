# SPDX-License-Identifier: Apache-2.0
"""Starting and ending the daemon, and what the rest of the system sees of the mount."""
import os
import pathlib
import re
import signal
import stat
import subprocess

import kv
import pytest

OPTIONS = ["state_dir", "ram_size", "memory_dir", "huge", "evict", "lookup_grace", "publish_wait", "entry_timeout",
           "negative_timeout", "passthrough", "io_uring", "threads", "allow_other"]


def run(*args, **kwargs):
    return subprocess.run([str(a) for a in args], capture_output=True, text=True, timeout=30, check=False, **kwargs)


def test_mount_is_what_findmnt_and_df_expect(mount):
    (path, kind, options), = kv.mounts(mount.path)
    assert (path, kind) == (str(mount.path), "fuse.kvcachefs")
    assert {"nosuid", "nodev", "default_permissions", "allow_other"} <= options
    assert run("findmnt", "-n", "-o", "SOURCE,FSTYPE", mount.path).stdout.split() == ["kvcachefs", "fuse.kvcachefs"]
    assert run("mountpoint", "-q", mount.path).returncode == 0
    assert "256M" in run("df", "-h", mount.path).stdout
    assert run("df", "-i", mount.path).returncode == 0


@pytest.mark.options(fsname="node1")
def test_fsname_is_honoured(mount):
    assert run("findmnt", "-n", "-o", "SOURCE", mount.path).stdout.strip() == "node1"


def test_root_is_an_empty_directory_of_the_owner(mount):
    found = os.stat(mount.path)
    assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (0o755, os.getuid(), os.getgid())
    assert os.listdir(mount.path) == []


def test_start_says_whether_there_is_passthrough_and_io_uring(mount):
    log = mount.log()
    for feature in ("passthrough", "io_uring"):
        assert re.search(rf"^<[4-6]>.*\b{feature}\b", log, re.M), log


@pytest.mark.options(passthrough="off", io_uring="off")
def test_start_says_why_a_feature_is_missing(mount):
    for feature in ("passthrough", "io_uring"):
        assert mount.lacks(feature), mount.log()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_signal_unmounts_cleanly(mount, number):
    kv.put(mount.path / "key", b"x")
    mount.stop(number)
    assert os.listdir(mount.path) == []
    mount.start()
    assert kv.get(mount.path / "key") == b"x"


def test_umount_ends_the_daemon(mount):
    kv.put(mount.path / "key", b"x")
    mount.umount()
    mount.start()
    assert kv.get(mount.path / "key") == b"x"


def test_fusermount_ends_the_daemon(mount):
    subprocess.run(["fusermount3", "-u", mount.path], check=True)
    mount.end("fusermount3 -u")


def test_two_mounts_do_not_know_each_other(launch):
    one, two = launch(), launch()
    kv.put(one.path / "key", b"one")
    kv.put(two.path / "key", b"two")
    assert kv.get(one.path / "key") == b"one"
    one.stop()
    assert kv.get(two.path / "key") == b"two"


@pytest.fixture
def background(work):
    """A function that starts a daemon as a user does, not in the foreground; it is unmounted at the end."""
    path, started = work / "mnt", []
    path.mkdir()

    def start(*args, **kwargs):
        done = run(kv.BINARY, *args, **kwargs)
        started.append(done.returncode)
        return path, done

    yield start
    if kv.mounted(path):
        pids = kv.processes_of(path)
        subprocess.run(["umount", path], check=True)
        for pid in pids:
            kv.eventually(lambda p=pid: not pathlib.Path(f"/proc/{p}").exists(), kv.STOP_SECONDS, "the daemon ends")
    assert started


def test_parent_returns_when_the_mount_answers(background, work):
    path, done = background(work / "mnt", "-o", f"state_dir={work}/state,ram_size=64M", cwd=work)
    assert done.returncode == 0, done.stderr
    assert kv.mounted(path)
    kv.put(path / "key", b"x")
    assert kv.get(path / "key") == b"x"
    (pid,) = kv.processes_of(path)
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert os.getsid(pid) == pid or os.getsid(pid) != os.getsid(0)


def test_parent_says_why_it_cannot_start(background, work):
    (work / "state").write_text("a file")
    path, done = background(work / "mnt", "-o", f"state_dir={work}/state,ram_size=64M")
    assert done.returncode not in (0, None)
    assert f"{work}/state" in done.stderr
    assert not kv.mounted(path)
    assert kv.processes_of(path) == []


def test_missing_state_directory_is_made(background, work):
    path, done = background(work / "mnt", "-o", f"state_dir={work}/new,ram_size=64M")
    assert done.returncode == 0, done.stderr
    assert stat.S_IMODE(os.stat(work / "new").st_mode) & 0o077 == 0
    kv.put(path / "key", b"x")


def test_config_file_is_read_and_the_command_line_wins(background, work):
    (work / "kv.conf").write_text(f"# a comment\nstate_dir = {work}/state\nram_size = 32M\nevict = off\n")
    path, done = background("--config", work / "kv.conf", work / "mnt", "-o", "ram_size=16M")
    assert done.returncode == 0, done.stderr
    assert os.statvfs(path).f_blocks * 4096 == 16 * kv.MiB
    assert kv.attribute(path, "evict") == "off"


def test_source_and_the_options_of_mount_are_accepted(background, work):
    options = f"rw,nosuid,nodev,noatime,_netdev,nofail,x-systemd.automount,comment=x,state_dir={work}/state,ram_size=16M"
    path, done = background("node1", work / "mnt", "-o", options)
    assert done.returncode == 0, done.stderr
    assert run("findmnt", "-n", "-o", "SOURCE", path).stdout.strip() == "node1"


def test_mount_helper_of_libfuse_starts_it(background, work):
    """As from a line of fstab: kvcachefs#node1 /mnt/kvcache fuse options."""
    helper = pathlib.Path("/sbin/mount.fuse3")
    if not helper.exists():
        pytest.skip(f"no {helper}")
    done = run(helper, f"{pathlib.Path(kv.BINARY).resolve()}#node1", work / "mnt", "-o",
               f"rw,_netdev,state_dir={work}/state,ram_size=16M")
    path, _ = background("--version")
    assert done.returncode == 0, done.stderr
    assert run("findmnt", "-n", "-o", "SOURCE", path).stdout.strip() == "node1"
    kv.put(path / "key", b"x")


def test_read_only_mount_serves_and_refuses_changes(launch, work):
    mount = launch()
    kv.put(mount.path / "key", b"x")
    mount.stop()
    mount.options["ro"] = "on"
    mount.start()
    assert kv.get(mount.path / "key") == b"x"
    for change in (lambda: kv.put(mount.path / "new", b""), lambda: os.unlink(mount.path / "key"),
                   lambda: os.mkdir(mount.path / "d"), lambda: os.chmod(mount.path / "key", 0o600)):
        with kv.fails(30):  # EROFS
            change()


def test_help_names_every_option(background):
    _, done = background("--help")
    assert done.returncode == 0
    for name in OPTIONS:
        assert re.search(rf"\b{name}\b", done.stdout), name


def test_version_is_printed(background):
    _, done = background("--version")
    assert done.returncode == 0
    assert re.search(r"\d+\.\d+", done.stdout)


def test_daemon_keeps_no_descriptor_per_key(mount):
    """The number of open files does not grow with the keys that nobody uses."""
    count = lambda: len(os.listdir(f"/proc/{mount.process.pid}/fd"))
    for n in range(10):
        kv.put(mount.path / f"k{n}", b"x")
    before = count()
    for n in range(2000):
        kv.put(mount.path / f"k{n}", b"x")
        kv.get(mount.path / f"k{n}")
    kv.eventually(lambda: count() <= before + 20, what="descriptors are closed")


def test_thousands_of_open_files_are_no_problem(mount):
    """Static NIXL keeps its pool open for life."""
    fds = []
    for n in range(5000):
        fd = os.open(mount.path / f"k{n}", os.O_RDWR | os.O_CREAT, 0o644)
        os.write(fd, b"%d" % n)
        fds.append(fd)
    for n, fd in enumerate(fds):
        assert os.pread(fd, 10, 0) == b"%d" % n
        os.close(fd)
    assert len(kv.present(mount.path, [f"k{n}" for n in range(5000)])) == 5000
