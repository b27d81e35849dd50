# SPDX-License-Identifier: Apache-2.0
"""Fixtures: each test has its own directory, daemon and mount, and leaves nothing behind."""
import os
import pathlib
import shutil
import signal
import tempfile

import kv
import pytest


def pytest_report_header():
    return f"daemon: {kv.BINARY}"


def pytest_sessionstart(session):
    if not session.config.option.collectonly and not os.access(kv.BINARY, os.X_OK):
        pytest.exit(f"{kv.BINARY}: no such program; build it or set DAEMON", returncode=4)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)  # a shell's background jobs ignore it, and so would their children


@pytest.fixture
def work():
    """A directory of the test's own that every user may search."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="kvcachefs-test-"))
    path.chmod(0o755)
    yield path
    kv.unmount_below(path)
    shutil.rmtree(path)


@pytest.fixture
def launch(work):
    """A function that starts a daemon with the options given; every daemon must end well."""
    started = []

    def start(**options):
        home = work / str(len(started))
        home.mkdir()
        started.append(kv.Daemon(home, options))
        return started[-1].start()

    yield start
    failures = []
    for daemon in reversed(started):
        try:
            daemon.finish()
        except AssertionError as error:
            failures.append(str(error))
    if failures:
        pytest.fail("\n".join(failures), pytrace=False)


def _options(request):
    marker = request.node.get_closest_marker("options")
    return dict(marker.kwargs) if marker else {}


@pytest.fixture
def mount(request, launch):
    """A mounted daemon with the default transport."""
    return launch(**_options(request))


@pytest.fixture(params=["passthrough", "daemon"])
def any_mount(request, launch):
    """A mounted daemon, once with passthrough and once with every byte going through the daemon."""
    if request.param == "daemon":
        return launch(**_options(request), passthrough="off")
    daemon = launch(**_options(request))
    if why := daemon.lacks("passthrough"):
        pytest.skip(why)
    return daemon


@pytest.fixture
def spawn(launch):
    """A function that starts another process (kv.Other)."""
    others = []

    def start(**kwargs):
        others.append(kv.Other(**kwargs))
        return others[-1]

    yield start
    for process in others:
        process.finish()


@pytest.fixture
def other(spawn):
    """One other process of the same user."""
    return spawn()
