#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""check-layers.py ROOT: every #include below ROOT/src keeps to the layers, and sources to their size.

A module may include itself and what its row names. The files directly in src/ see everything and are seen by nothing.
"""
import pathlib
import re
import sys

MAY_INCLUDE = {
    "base": set(),
    "wire": {"base"},
    "key": {"base"},
    "meta": {"base", "wire", "key"},
    "tier": {"base", "wire"},
    "net": {"base", "wire"},
    "rdma": {"base", "wire", "net"},
    "cluster": {"base", "wire", "net"},
    "cache": {"base", "key", "meta", "tier", "net", "cluster"},
    "fuse": {"base", "key", "cache"},
    "ctl": {"base", "wire", "cache"},
}

# Foreign headers and the modules that alone may include them; "" is src/ itself.
FOREIGN = {
    "pthread.h": {"base"},
    "sqlite3.h": {"meta"},
    "liburing.h": {"tier"},
    "xxhash.h": {"base", "key", "cache"},
    "sys/socket.h": {"net"},
    "sys/un.h": {"ctl"},
    "infiniband/verbs.h": {"rdma"},
    "rdma/rdma_cma.h": {"rdma"},
    "hiredis/hiredis.h": {"cluster"},
    "fuse_lowlevel.h": {"fuse"},
    "fuse.h": set(),
    "fuse_opt.h": {"fuse"},
    "ini.h": {""},
}

# Names that a system header has: with -I src one could be taken for the other.
TAKEN = {"fuse.h", "verbs.h", "rdma_cma.h", "sqlite3.h"}

INCLUDE = re.compile(r'^\s*#\s*include\s+(?:"([^"]+)"|<([^>]+)>)', re.M)
MAX_LINES = 600
MAX_LINES_OF = {"main.c": 300}


def check_file(src, path):
    """The complaints about one source."""
    name = path.relative_to(src)
    module = name.parts[0] if len(name.parts) > 1 else ""
    text = path.read_text()
    if module and module not in MAY_INCLUDE:
        yield f"{name}: no such module: {module}/"
        return
    if path.name in TAKEN:
        yield f"{name}: this name belongs to a system header"
    lines = text.count("\n")
    limit = MAX_LINES_OF.get(str(name), MAX_LINES)
    if lines > limit:
        yield f"{name}: {lines} lines, at most {limit}: split it"
    if not text.startswith("/* SPDX-License-Identifier: Apache-2.0 */\n"):
        yield f"{name}: does not begin with its SPDX line"
    for own, foreign in INCLUDE.findall(text):
        if own:
            yield from check_own(src, name, module, own)
        elif foreign in FOREIGN and module not in FOREIGN[foreign]:
            yield f"{name}: <{foreign}> belongs to {', '.join(sorted(FOREIGN[foreign])) or 'nobody'}"


def check_own(src, name, module, own):
    """The complaints about one include of ours."""
    if own == "config.h":  # made by the build
        return
    if not (src / own).is_file():
        yield f'{name}: "{own}": includes are written from src/, and foreign ones in <>'
        return
    parts = pathlib.PurePath(own).parts
    seen = parts[0] if len(parts) > 1 else ""
    if module and seen != module and seen not in MAY_INCLUDE[module]:
        yield f"{name}: {module}/ may not include {own}"


def main():
    src = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".", "src")
    sources = sorted(src.rglob("*.[ch]"))
    complaints = [c for path in sources for c in check_file(src, path)]
    for complaint in complaints:
        print(complaint)
    if not sources:
        print(f"{src}: no sources")
    return 1 if complaints or not sources else 0


if __name__ == "__main__":
    sys.exit(main())
