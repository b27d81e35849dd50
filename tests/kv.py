# SPDX-License-Identifier: Apache-2.0
"""kv - what the black-box tests share: the daemon under test, other processes, waiting, and bytes.

The daemon is the program in the environment variable DAEMON, or build/kvcachefs of this checkout.
"""
import concurrent.futures
import contextlib
import errno
import fcntl
import json
import mmap
import os
import pathlib
import pickle
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest
import syscalls

TESTS = pathlib.Path(__file__).resolve().parent
BINARY = os.environ.get("DAEMON") or str(TESTS.parent / "build" / "kvcachefs")
START_SECONDS = 20
STOP_SECONDS = 30
KiB, MiB, GiB = 1 << 10, 1 << 20, 1 << 30


# ---- waiting and failing

def eventually(predicate, seconds=10, what="the condition"):
    """Poll until predicate() is true and return its value; it is a failure when the time is over."""
    deadline = time.monotonic() + seconds
    while True:
        value = predicate()
        if value:
            return value
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.005)


@contextlib.contextmanager
def fails(*numbers):
    """The body must raise OSError with one of these numbers."""
    names = [errno.errorcode[n] for n in numbers]
    try:
        yield
    except OSError as error:
        assert error.errno in numbers, f"expected {names}, got {error!r}"
    else:
        raise AssertionError(f"expected {names}, but it worked")


# ---- mounts

def _unescape(field):
    return re.sub(r"\\([0-7]{3})", lambda m: chr(int(m.group(1), 8)), field)


def mounts(below=None):
    """Mount points as (path, type, options), those at or below a directory, in the order they were mounted."""
    found = []
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        fields, tail = left.split(), right.split()
        path = _unescape(fields[4])
        if below is None or path == str(below) or path.startswith(f"{below}/"):
            found.append((path, tail[0], set(fields[5].split(",")) | set(tail[2].split(","))))
    return found


def mounted(path):
    return any(point == str(path) for point, _, _ in mounts(path))


def unmount_below(directory):
    """Remove every mount at or below a directory, the newest first; returns what was there."""
    found = [path for path, _, _ in mounts(directory)]
    for path in reversed(found):
        if subprocess.run(["umount", path], stderr=subprocess.DEVNULL, check=False).returncode:
            subprocess.run(["umount", "-f", "-l", path], check=True)
    return found


def _stuck_threads(pid):
    """Where in the kernel the threads of a process wait."""
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):
            found.append((task / "comm").read_text().strip() + "\n" + (task / "stack").read_text())
    return "\n".join(found)


# ---- the daemon

class Daemon:
    """One kvcachefs in the foreground with a mount point, a state directory and a log of its own."""

    def __init__(self, work, options):
        self.work = work
        self.path = work / "mnt"
        self.state = work / "state"
        self.log_path = work / "log"
        self.memory = self.state / "memory"
        self.options = {"state_dir": self.state, "ram_size": "256M"} | options
        self.process = None
        self._allowed = []
        self.path.mkdir(exist_ok=True)
        self.state.mkdir(exist_ok=True)

    def command(self, **options):
        given = ",".join(f"{k}={v}" for k, v in (self.options | options).items())
        return [BINARY, str(self.path), "-f", "-o", given]

    def start(self):
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log, cwd="/", start_new_session=True)
        eventually(self._answers, START_SECONDS, "the mount answers")
        return self

    def _answers(self):
        status = self.process.poll()
        assert status is None, f"the daemon ended with status {status}:\n{self.log()}"
        try:
            os.statvfs(self.path)  # never from the kernel's caches, unlike the rest; fails on a killed predecessor's mount
            return os.stat(self.path).st_dev != os.stat(self.path.parent).st_dev
        except OSError:
            return False

    def running(self):
        return self.process is not None and self.process.poll() is None

    def log(self):
        return self.log_path.read_text(errors="replace")

    def lacks(self, feature):
        """Why the daemon has no passthrough or io_uring, in its own words; None when it has it."""
        found = re.search(rf"^.*\b{feature}(?:=off|=no|: no| is not).*$", self.log(), re.M)
        return found and found.group(0)

    def needs_libfuse(self, version, what):
        """Skip the test when the daemon was built with an older libfuse, which has not @what."""
        found = re.search(r"libfuse=(\d+)\.(\d+)", self.log())
        if (int(found[1]), int(found[2])) < version:
            pytest.skip(f"libfuse before {version[0]}.{version[1]} has no {what}")

    def expect_errors(self, pattern):
        """Error lines that match are part of this test."""
        self._allowed.append(re.compile(pattern))

    def errors(self):
        lines = re.findall(r"^(?:<[0-3]>|.*(?:Sanitizer|runtime error):).*$", self.log(), re.M)
        return [line for line in lines if not any(a.search(line) for a in self._allowed)]

    def end(self, by):
        """Wait for the end that something else has asked for, and judge it."""
        try:
            status = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill9()
            raise AssertionError(f"{by} did not end the daemon in {STOP_SECONDS} s:\n{self.log()}") from None
        assert status == 0, f"after {by} the daemon ended with status {status}:\n{self.log()}"
        assert not mounted(self.path), f"{by} left the mount behind"
        errors = self.errors()
        assert not errors, "error lines in the log:\n" + "\n".join(errors[:20])

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        self.end(signal.Signals(number).name)

    def umount(self):
        subprocess.run(["umount", str(self.path)], check=True)
        self.end("umount")

    def kill9(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            stuck = _stuck_threads(self.process.pid)
            subprocess.run(["umount", "-f", "-l", str(self.path)], check=False)  # ends the wait of all its users
            self.process.wait()
            raise AssertionError(f"the killed daemon does not end, nor do its users:\n{stuck}") from None

    def restart(self, how="SIGTERM"):
        """Stop (or kill -9, once what was closed is published) the daemon, and start it again on the same state."""
        if how == "SIGTERM":
            self.stop()
        else:
            eventually(lambda: counter(self.path, "kvcachefs_processing") == 0, what="everything is published")
            self.kill9()
        return self.start()

    def forget_memory(self):
        """What a reboot does to the memory tier; the daemon must be down."""
        unmount_below(self.path)  # a killed daemon's mount keeps files of the tier open
        unmount_below(self.memory)

    def finish(self):
        """The end of a test: a running daemon must stop well."""
        try:
            if self.running():
                self.stop()
        finally:
            if self.running():
                self.kill9()
            unmount_below(self.work)

    # -- shorthand for what tests ask of a mount

    def free_bytes(self):
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def mkdir(self, name, **attributes):
        """A new directory with the placement attributes given (user.kvcache.NAME)."""
        path = self.path / name
        path.mkdir()
        for key, value in attributes.items():
            os.setxattr(path, f"user.kvcache.{key}", value.encode())
        return path


@contextlib.contextmanager
def scratch_daemon(work=None, **options):
    """A started daemon in a directory of its own (or in an empty one given), which ends well and leaves nothing."""
    home = pathlib.Path(work or tempfile.mkdtemp(prefix="kvcachefs-stress-"))
    daemon = Daemon(home, options)
    try:
        yield daemon.start()
        daemon.stop()
    except BaseException:
        sys.stderr.write(daemon.log()[-4000:])
        raise
    finally:
        if daemon.running():
            daemon.kill9()
        unmount_below(home)
        if work is None:
            shutil.rmtree(home)


def attribute(path, name):
    """A user.kvcache attribute as text."""
    return os.getxattr(path, f"user.kvcache.{name}").decode()


def processes_of(path):
    """Running daemons that were started with this path among their arguments."""
    found = []
    for directory in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            arguments = (directory / "cmdline").read_bytes().split(b"\0")
            if os.fsencode(path) in arguments and b"kvcachefs" in arguments[0]:
                found.append(int(directory.name))
    return found


def holds_open(pid, path):
    """Whether a process has a file of this path open."""
    held = pathlib.Path(f"/proc/{pid}/fd")
    return any(os.readlink(fd) == str(path) for fd in held.iterdir() if os.path.lexists(fd))


def counter(path, word):
    """The largest sample of /.kvcache/stats whose name has a word; 0 when there is none."""
    try:
        lines = pathlib.Path(path, ".kvcache", "stats").read_text().splitlines()
    except FileNotFoundError:
        return 0
    return max((int(float(line.rpartition(" ")[2])) for line in lines if word in line.split(" ")[0]), default=0)


# ---- other processes

class _Module:
    def __init__(self, other, name):
        self._other, self._name = other, name

    def __getattr__(self, function):
        return lambda *args: self._other.call(f"{self._name}.{function}", *args)


class Other:
    """Another process that does what it is told: other.os.open(path, os.O_RDONLY), other.kv.get(path).

    Errors come back as if the call had been made here.
    """

    def __init__(self, uid=0, groups=(), umask=0o022):
        self._process = subprocess.Popen(
            [sys.executable, "-E", "-s", str(TESTS / "agent.py"), json.dumps([uid, list(groups)])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, umask=umask, cwd="/")
        self.pid = self._process.pid

    def __getattr__(self, module):
        return _Module(self, module)

    def call(self, function, *args):
        self.begin(function, *args)
        return self.result()

    def begin(self, function, *args):
        """Start a call and do not wait; result() has its outcome."""
        pickle.dump((function, args), self._process.stdin)
        self._process.stdin.flush()

    def answered(self, seconds=0):
        """Whether the call has come to its end."""
        return bool(select.select([self._process.stdout], [], [], seconds)[0])

    def result(self, seconds=45):
        assert self.answered(seconds), f"process {self.pid}: no answer in {seconds} s"
        good, value = pickle.load(self._process.stdout)
        if good:
            return value
        raise value

    def kill(self, number=signal.SIGKILL):
        self._process.send_signal(number)
        self._process.wait()

    def exit(self):
        """Exit in good order, closing nothing first; returns the exit status."""
        self._process.stdin.close()
        return self._process.wait()

    def finish(self):
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()


# ---- bytes

def pattern(size, seed=0):
    """Bytes that depend on a seed and repeat at an odd distance, so that a shift shows."""
    block = random.Random(seed).randbytes(min(size, 65537))
    return (block * (size // max(len(block), 1) + 1))[:size]


def write_all(fd, data):
    """One write, which must take everything; if the mount dies in the middle, the rest says so."""
    done = os.write(fd, data)
    if done != len(data):
        os.write(fd, data[done:])
        raise AssertionError(f"short write: {done} of {len(data)}")


def put(path, data, flags=os.O_CREAT | os.O_TRUNC, mode=0o644):
    """Create or overwrite by one write."""
    fd = os.open(path, os.O_WRONLY | flags, mode)
    try:
        write_all(fd, data)
    finally:
        os.close(fd)


def get(path):
    """Whole content by one read, which must not be short."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return read_all(fd)
    finally:
        os.close(fd)


def read_all(fd):
    """The content of an open file by one pread, checked against its size; if the mount dies in the middle, the rest says so."""
    size = os.fstat(fd).st_size
    data = os.pread(fd, size + 1, 0)
    if len(data) != size:
        os.pread(fd, 1, len(data))
        raise AssertionError(f"read {len(data)} of {size}")
    return data


def exists(path):
    return os.path.lexists(path)


def present(directory, names):
    """Which of the names exist, asked one by one."""
    return [name for name in names if os.path.lexists(os.path.join(directory, name))]


def replace_by_rename(path, count, close_first):
    """Replace a key time and again, as an engine does: temporary name, write, rename."""
    for i in range(count):
        temporary = f"{path}.tmp.{os.getpid()}"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        write_all(fd, bytes([i % 256]) * 8192)
        if close_first:
            os.close(fd)
        os.replace(temporary, path)
        if not close_first:
            os.close(fd)


def replace_in_place(path, count):
    """Replace a key by opening it with O_TRUNC."""
    for i in range(count):
        put(path, bytes([i % 256]) * 8192)


_held = {}


def hold_mapping(path, flags, prot=mmap.PROT_READ):
    """Map a whole file and keep nothing but the mapping."""
    fd = os.open(path, os.O_RDONLY)
    _held[str(path)] = syscalls.Mapping(fd, os.fstat(fd).st_size, flags, prot)
    os.close(fd)


def held_bytes(path):
    return _held[str(path)].load()


def map_all(paths):
    """Map every file, fault in every page from a thread of its own each; the sum of the first bytes of all pages."""
    def touch(path):
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping:
            return sum(mapping[::mmap.PAGESIZE])

    with concurrent.futures.ThreadPoolExecutor(len(paths)) as pool:
        return sum(pool.map(touch, paths))


def start_idle_threads(count):
    for _ in range(count):
        threading.Thread(target=threading.Event().wait, daemon=True).start()


# Locks, by the three interfaces there are.

def take_lock(fd, how):
    """An exclusive lock on the whole file, without waiting."""
    if how == "flock":
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    elif how == "lockf":
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    else:
        syscalls.ofd_lock(fd, syscalls.F_OFD_SETLK, fcntl.F_WRLCK)


def try_lock(fd, how):
    try:
        take_lock(fd, how)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    return True


def try_flock(fd):
    return try_lock(fd, "flock")


def wait_for_lock(path, how):
    """Open, lock, close: waits as long as it takes."""
    fd = os.open(path, os.O_RDWR)
    if how == "flock":
        fcntl.flock(fd, fcntl.LOCK_EX)
    elif how == "lockf":
        fcntl.lockf(fd, fcntl.LOCK_EX)
    else:
        syscalls.ofd_lock(fd, syscalls.F_OFD_SETLKW, fcntl.F_WRLCK)
    os.close(fd)


def open_mode(path, mode):
    """The descriptor of Python's open(path, mode), which stays open."""
    with open(path, mode, encoding="utf-8") as file:
        return os.dup(file.fileno())


def count_under_flock(lock, counter, count):
    """Read, add one, write, as often as asked, each time under the lock."""
    fd = os.open(lock, os.O_RDONLY)
    for _ in range(count):
        fcntl.flock(fd, fcntl.LOCK_EX)
        put(f"{counter}.tmp", b"%d" % (int(get(counter)) + 1))
        os.replace(f"{counter}.tmp", counter)
        fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def make_directories(path, count):
    for _ in range(count):
        os.makedirs(path, exist_ok=True)


def put_many(directory, prefix, count, data):
    for n in range(count):
        put(os.path.join(directory, f"{prefix}{n}"), data)


def unlink_many(directory, prefix, count):
    for n in range(count):
        os.unlink(os.path.join(directory, f"{prefix}{n}"))


def try_rmdir(path):
    try:
        os.rmdir(path)
    except OSError as error:
        if error.errno == errno.ENOTEMPTY:
            return False
        raise
    return True


def try_rename(old, new):
    try:
        os.rename(old, new)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return False
        raise
    return True


def rename_to_and_fro(one, two, count):
    for _ in range(count):
        os.rename(one, two)
        os.rename(two, one)


def mix(what, paths, count, seed):
    """Do one thing to names taken at random, which others replace and move meanwhile; what is read must be one writer's bytes."""
    chance = random.Random(seed)

    def read(path):
        data = get(path)
        assert len(data) == 8192 and len(set(data)) == 1, f"torn: {len(data)} bytes, {len(set(data))} kinds"

    def change(path):
        fd = os.open(path, os.O_RDWR)
        with at_work(fd):
            os.pwrite(fd, bytes([chance.randrange(256)]) * os.fstat(fd).st_size, 0)

    def overwrite(path):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        with at_work(fd):
            write_all(fd, bytes([chance.randrange(256)]) * 8192)

    @contextlib.contextmanager
    def at_work(fd):
        try:
            yield
        except OSError as error:
            raise AssertionError("open, but cannot be written") from error
        finally:
            os.close(fd)

    do = {
        "read": read,
        "overwrite": overwrite,
        "change": change,
        "rename": lambda path: os.rename(path, chance.choice(paths)),
    }[what]
    # A writer whose name moves away and back while the kernel looks for it is sent round once more than the kernel goes.
    tolerated = (errno.ENOENT, errno.ESTALE, errno.EBUSY) if what in ("overwrite", "change") else (errno.ENOENT,)
    for _ in range(count):
        try:
            do(chance.choice(paths))
        except OSError as error:
            if error.errno not in tolerated:
                raise
