# SPDX-License-Identifier: Apache-2.0
"""What is written about the options agrees with the program."""
import pathlib
import re
import shutil
import subprocess

import kv
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent


def help_text():
    return subprocess.run([kv.BINARY, "--help"], check=True, capture_output=True, text=True).stdout


def help_options():
    """Name -> (value, default) of every option that --help lists."""
    found = re.findall(r"^    (\w+)=(\S+)\n +.* \(default: (.*)\)$", help_text(), re.M)
    assert len(found) > 10
    return {name: (value, default) for name, value, default in found}


def manual():
    return (ROOT / "man/kvcachefs.8.scd").read_text()


def manual_options():
    """Name -> (value, default) of every option that the manual page lists."""
    section = re.search(r"^# OPTIONS$(.*?)^# ", manual(), re.M | re.S).group(1)
    found = {}
    for name, value, body in re.findall(r"^\*(\w+)\*=(\S+)\n((?:\t.*\n)+)", section, re.M):
        default = re.search(r"Default:\s+(.*?)\.?\s*$", " ".join(body.split()))
        assert default, f"{name}: the manual page tells no default"
        found[name] = (re.sub(r"[*_]", "", value), re.sub(r"\*|(?<!\w)_|_(?!\w)", "", default.group(1)))
    return found


def test_the_manual_page_lists_the_options_of_help_in_the_same_order():
    assert list(manual_options()) == list(help_options())


def test_the_manual_page_says_what_values_the_options_take():
    assert {n: v for n, (v, _) in manual_options().items()} == {n: v for n, (v, _) in help_options().items()}


def test_the_manual_page_gives_the_defaults_of_help():
    said = {name: default for name, (_, default) in manual_options().items()}
    shown = {name: default for name, (_, default) in help_options().items()}
    # A path with alternatives, and a number that is explained.
    assert said.pop("state_dir").startswith("/var/lib/kvcachefs/") and "/var/lib/kvcachefs" in shown.pop("state_dir")
    assert shown.pop("threads").startswith(said.pop("threads") + ":")
    assert said == shown


def test_the_manual_page_of_the_file_names_every_option():
    page = (ROOT / "man/kvcachefs.conf.5.scd").read_text()
    section = re.search(r"^# OPTIONS$(.*?)^# ", page, re.M | re.S).group(1)
    assert re.findall(r"\*(\w+)\*", section) == list(help_options())


def test_the_manual_page_has_the_flags_of_help():
    flags = set(re.findall(r"(?<![\w-])(--?[a-zA-Z]\w*)", help_text().split("Options for -o")[0]))
    section = re.search(r"^# FLAGS$(.*?)^# ", manual(), re.M | re.S).group(1)
    assert flags and flags <= set(re.findall(r"(--?[a-zA-Z]\w*)", section))


def test_the_example_file_shows_every_option_and_is_accepted(tmp_path):
    text = (ROOT / "etc/kvcachefs.conf").read_text()
    shown = re.findall(r"^# (\w+) = ?.*$", text, re.M)
    assert shown == list(help_options())
    conf = tmp_path / "conf"
    conf.write_text(re.sub(r"^# (?=\w+ = ?)", "", text, flags=re.M))
    # A mount point that is missing: all else is looked at first.
    done = subprocess.run([kv.BINARY, "--config", conf, tmp_path / "missing"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        32, f"kvcachefs: mount point {tmp_path}/missing: No such file or directory\n")


def test_the_version_is_that_of_the_build():
    version = re.search(r"version: '([^']+)'", (ROOT / "meson.build").read_text()).group(1)
    said = subprocess.run([kv.BINARY, "--version"], check=True, capture_output=True, text=True).stdout
    assert re.fullmatch(rf"kvcachefs {re.escape(version)}\nlibfuse \d+\.\d+\S*\n", said)


def test_the_readme_begins_with_the_two_commands():
    commands = re.findall(r"^    (.+)$", (ROOT / "README.md").read_text(), re.M)
    assert [re.sub(r"\s+#.*", "", c) for c in commands[:2]] == ["sudo tools/run /mnt/kvcache", "sudo tools/test"]


def test_every_check_that_clang_tidy_is_asked_for_exists():
    tidy = shutil.which("clang-tidy-14") or pytest.skip("no clang-tidy-14")
    known = subprocess.run([tidy, "--checks=*", "--list-checks"], capture_output=True, text=True, check=True).stdout.split()
    asked = re.search(r"^Checks: >-\n(.*?)^\w", (ROOT / ".clang-tidy").read_text(), re.M | re.S).group(1)
    for check in re.split(r"[,\s]+", asked.strip()):
        pattern = re.compile(check.lstrip("-").replace("*", ".*") + "$")
        assert any(pattern.match(name) for name in known), check
