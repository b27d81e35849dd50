# SPDX-License-Identifier: Apache-2.0
"""Names: a key is the path below the mount, byte for byte."""
import errno
import os
import platform
import re

import kv
import pytest

HEX64 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
HEX32 = HEX64[:32]
HEX12 = HEX64[:12]
SALT = "s" * 128

# How the engines' file back ends name their keys and their temporary files.
CLIENT_KEYS = {
    "lmcache-fs": f"meta-llama-Llama-3.1-8B-Instruct@1@0@{HEX64}@bfloat16.data",
    "lmcache-fs-tag": f"meta-llama-Llama-3.1-8B-Instruct@1@0@{HEX64}@bfloat16@lmcache.tag.user%alice@tier%gold.data",
    "lmcache-fs-temporary": f"meta-llama-Llama-3.1-8B-Instruct@1@0@{HEX64}@bfloat16.tmp",
    "lmcache-fs-l2": f"-SEP-data-medium-SEP-models-SEP-gemma-4-26B-A4B-it-dynamic-SEP-@0x01000100@1@{HEX64}.data",
    "lmcache-fs-l2-salt": f"-SEP-data-medium-SEP-gemma-4-26B-dynamic-SEP-{SALT}@0x01000100@1@{HEX64}@{SALT[:20]}.data",
    "lmcache-fs-native": f"9f/86/-SEP-data-SEP-gemma@0x01000100@1@{HEX64}.data",
    "lmcache-local-disk": f"vllm@-disc-data1-Qwen-Qwen2.5-1.5B-Instruct@1@0@{HEX64}@bfloat16.pt",
    "lmcache-gds": f"9f/86/meta-llama%2FLlama-3.1-8B-Instruct%408%403%40{HEX64}%40bfloat16.kvcache.safetensors",
    "lmcache-gds-metadata":
        f"9f/86/meta-llama%2FLlama-3.1-8B-Instruct%408%403%40{HEX64}%40bfloat16.kvcache.safetensors.metadata",
    "lmcache-gds-temporary": f"9f/86/meta-llama%2FLlama%408%403%40{HEX64}.kvcache.safetensors.tmp9f86d081",
    "lmcache-nixl": f"meta-llama--Llama-3.1-8B-Instruct_01000100_1_{HEX64}.bin.tmp.{HEX32}",
    "vllm-tier": f"meta-llama_Llama-3.1-8B-Instruct_{HEX12}_r0/9f8/6d_g0/{HEX64}.bin",
    "vllm-tier-temporary": f"meta-llama_Llama-3.1-8B_{HEX12}_r0/9f8/6d_g0/{HEX64}_6734567890123456789.tmp",
    "vllm-example": f"{HEX32}/model.layers.0.self_attn.attn.safetensors",
    "vllm-hf3fs": "data/hicache.0.bin",
    "sglang-file": f"{HEX64}_meta-llama-Llama-3.1-70B-Instruct_0_8.bin",
    "sglang-file-temporary": f"{HEX64}.swa_meta-llama-Llama-3.1-70B_0_8_pp1_cp2.bin.tmp.4711.140187.{HEX32}",
    "sglang-fast-file": f"namespace-{HEX64[:24]}/{HEX64}",
    "sglang-nixl": f"9f/{HEX64}_0_k",
    "ucm": f"9f8/{HEX32}.tmp",
    "ucm-heartbeat": ".ucm_gc.lock/hb.node-17.example.4711.8c1d",
    "dynamo": "dynamo-kvbm-disk-cache-Xa81Qz",
    "safetensors-temporary": ".tmpA1b2C3",
    "tensorrt-llm": "block_17_pool_0.bin",
    "mooncake": f"cluster/a/p/Qwen3-8B@cfg:0f3a@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@{HEX64}",
    "mooncake-bucket": "1717171717.bucket",
    "shell-trouble": "-rf *; $(reboot) `x` \"quoted\" 'k' \\ & | < > ?#~",
    "utf-8": "ключ-キー-🗝",
    "blanks": " leading, inner\tand trailing ",
}


@pytest.mark.parametrize("key", CLIENT_KEYS.values(), ids=CLIENT_KEYS)
def test_key_of_a_client_is_kept_byte_for_byte(mount, other, key):
    path = mount.path / key
    path.parent.mkdir(parents=True, exist_ok=True)
    other.kv.put(path, key.encode())
    assert kv.get(path) == key.encode()
    assert os.listdir(os.fsencode(path.parent)) == [os.fsencode(path.name)]
    path.unlink()
    assert not kv.exists(path)


def test_every_byte_but_slash_and_nul_may_be_in_a_name(mount, other):
    root = os.fsencode(mount.path)
    everything = bytes(b for b in range(1, 256) if b != ord("/"))
    names = {everything, b"\xff\xfe not utf-8 \xc3", b"line\nfeed", b"..."} | {bytes([b]) + b"x" for b in everything}
    for name in names:
        kv.put(os.path.join(root, name), name)
    assert set(os.listdir(root)) == names
    for name in names:
        assert other.kv.get(os.path.join(root, name)) == name


def test_names_that_look_alike_are_different_keys(mount, other):
    names = ["Key", "key", "KEY", "caf\u00e9", "cafe\u0301", "key ", "key.", ".key", "key%2F", "key%2f"]
    for name in names:
        kv.put(mount.path / name, name.encode())
    assert sorted(os.listdir(mount.path)) == sorted(names)
    for name in names:
        assert other.kv.get(mount.path / name) == name.encode()


@pytest.mark.parametrize("length", [1, 254, 255, 256, 295, 512, 1022, 1023])
def test_component_of_this_length_works_everywhere(mount, other, length):
    name = "n" * length
    path = mount.path / name
    kv.put(path, b"bytes")
    assert other.os.stat(path).st_size == 5
    assert os.listdir(mount.path) == [name]
    path.rename(mount.path / ("m" * length))
    assert not kv.exists(path)
    os.mkdir(path)
    os.symlink("target", path / name)
    assert other.os.readlink(path / name) == "target"
    os.link(mount.path / ("m" * length), path / ("l" * length))
    assert other.kv.get(path / ("l" * length)) == b"bytes"


def test_long_names_with_a_common_beginning_are_different_keys(mount, other):
    names = ["n" * 1000 + end for end in ("", "a", "b", "ab")] + ["n" * 255, "n" * 256]
    for name in names:
        kv.put(mount.path / name, name.encode())
    for name in names:
        assert other.kv.get(mount.path / name) == name.encode()
    assert sorted(os.listdir(mount.path)) == sorted(names)


def test_limit_of_a_component_is_told_truly(mount):
    limit = os.pathconf(mount.path, "PC_NAME_MAX")
    kernel = tuple(map(int, re.match(r"(\d+)\.(\d+)", platform.release()).groups()))
    assert limit == (4095 if kernel >= (6, 15) else 1024)
    assert os.statvfs(mount.path).f_namemax == limit
    root = os.open(mount.path, os.O_RDONLY)
    try:
        os.close(os.open("n" * limit, os.O_CREAT | os.O_WRONLY, dir_fd=root))
        assert os.listdir(mount.path) == ["n" * limit]
        long = "n" * (limit + 1)
        for call in (lambda: os.open(long, os.O_CREAT | os.O_WRONLY, dir_fd=root),
                     lambda: os.mkdir(long, dir_fd=root),
                     lambda: os.stat(long, dir_fd=root),
                     lambda: os.symlink("t", long, dir_fd=root),
                     lambda: os.unlink(long, dir_fd=root),
                     lambda: os.link("n" * limit, long, src_dir_fd=root, dst_dir_fd=root),
                     lambda: os.rename("n" * limit, long, src_dir_fd=root, dst_dir_fd=root)):
            with kv.fails(errno.ENAMETOOLONG):
                call()
    finally:
        os.close(root)


def test_key_of_4095_bytes_works(mount, other):
    part, parts = "d" * 255, 16
    assert len("/".join([part] * parts)) == 4095
    fd = os.open(mount.path, os.O_RDONLY)
    for _ in range(parts - 1):
        os.mkdir(part, dir_fd=fd)
        deeper = os.open(part, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = deeper
    file = os.open(part, os.O_CREAT | os.O_WRONLY, dir_fd=fd)
    kv.write_all(file, b"deep")
    os.close(file)
    other.os.chdir(mount.path)
    for _ in range(parts - 1):
        other.os.chdir(part)
    assert other.kv.get(part) == b"deep"
    other.os.chdir("/")
    os.close(fd)


def test_missing_parent_is_enoent_and_a_file_as_parent_is_enotdir(mount):
    kv.put(mount.path / "file", b"")
    with kv.fails(errno.ENOENT):
        kv.put(mount.path / "no" / "key", b"")
    with kv.fails(errno.ENOTDIR):
        kv.put(mount.path / "file" / "key", b"")
    with kv.fails(errno.ENOTDIR):
        os.stat(mount.path / "file" / "key")


def test_control_directory_name_is_an_ordinary_key_below_the_root(mount, other):
    path = mount.mkdir("sub") / ".kvcache"
    kv.put(path, b"mine")
    assert other.kv.get(path) == b"mine"
    assert os.listdir(mount.path / "sub") == [".kvcache"]


def test_names_and_bytes_survive_restart_whatever_the_length(mount):
    names = ["k" * n for n in (1, 255, 256, 1023)]
    for name in names:
        kv.put(mount.path / name, name.encode())
    mount.restart()
    assert sorted(os.listdir(mount.path)) == sorted(names)
    for name in names:
        assert kv.get(mount.path / name) == name.encode()
