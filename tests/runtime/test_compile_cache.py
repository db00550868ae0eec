from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kb.dtype import Target
from runtime.compile_cache import CompileCache, CompileKey, default_root
from runtime.errors import CompilerMessage, Level
from runtime.image import EntryResources, Image

ROOT = Path(__file__).resolve().parents[2]
WARNING = CompilerMessage(Level.WARNING, "unused", line=3, column=1, file="kernel.cu", excerpt="int i;")


def key(text: str = "source", **changes: object) -> CompileKey:
    parts: dict[str, object] = {
        "target": Target.CUDA,
        "text": text,
        "options": ("-O3",),
        "arch": "sm_90",
        "compiler": "c",
    }
    return CompileKey(**parts | changes)  # type: ignore[arg-type]


def put(cache: CompileCache, text: str = "source", data: bytes = b"image") -> Image:
    return cache.put(key(text), data, {"k": EntryResources(registers=32)}, [WARNING], seconds=1.5)


def files(cache: CompileCache) -> list[Path]:
    return sorted(p for p in cache.root.rglob("*") if p.is_file())


def test_what_was_put_is_found_with_everything_the_compiler_said(tmp_path: Path) -> None:
    cache = CompileCache(tmp_path)
    kept = put(cache)
    found = CompileCache(tmp_path).find(key())
    assert found is not None
    assert (found.cached, kept.cached) == (True, False)
    assert (found.path, found.path.read_bytes(), found.digest) == (kept.path, b"image", kept.digest)
    assert found.resources == {"k": EntryResources(registers=32)}
    assert found.messages == (WARNING,)


def test_anything_that_changes_the_image_changes_the_key() -> None:
    keys = [
        key(),
        key("other"),
        key(target=Target.CPU),
        key(options=("-O2",)),
        key(options=("-O3", "")),
        key(arch="sm_80"),
        key(compiler="d"),
    ]
    assert len({k.digest for k in keys}) == len(keys)


@pytest.mark.parametrize("suffix", [".cubin", ".json"])
@pytest.mark.parametrize("damage", ["truncated", "empty", "garbage", "absent", "folder"])
def test_a_damaged_entry_is_absent_and_can_be_put_again(tmp_path: Path, suffix: str, damage: str) -> None:
    cache = CompileCache(tmp_path)
    victim = put(cache).path.with_suffix(suffix)
    content = victim.read_bytes()
    if damage == "truncated":
        victim.write_bytes(content[:-1])
    elif damage == "empty":
        victim.write_bytes(b"")
    elif damage == "garbage":
        victim.write_bytes(bytes(b ^ 0xFF for b in content))
    elif damage == "absent":
        victim.unlink()
    else:
        victim.unlink()
        victim.mkdir()
    assert cache.find(key()) is None
    again = put(cache)
    assert again.path.read_bytes() == b"image"


@pytest.mark.parametrize("record", ["[]", "null", "{}", '{"format": 99}', '{"format": 1, "sha256": 3}'])
def test_a_record_of_another_shape_is_absent(tmp_path: Path, record: str) -> None:
    cache = CompileCache(tmp_path)
    put(cache).path.with_suffix(".json").write_text(record)
    assert cache.find(key()) is None


def test_an_image_of_another_writer_is_not_taken_for_the_recorded_one(tmp_path: Path) -> None:
    cache = CompileCache(tmp_path)
    kept = put(cache)
    kept.path.write_bytes(b"imagf")
    assert cache.find(key()) is None


def test_the_least_recently_used_go_first_and_the_newest_always_stays(tmp_path: Path) -> None:
    cache = CompileCache(tmp_path, limit_bytes=1 << 20)
    for i, text in enumerate("abc"):
        for path in (image := put(cache, text, b"x" * 1000).path), image.with_suffix(".json"):
            os.utime(path, (1000 + i, 1000 + i))
    assert cache.find(key("a")) is not None  # used, so no longer the oldest
    one = cache.size_bytes() // 3
    CompileCache(tmp_path, limit_bytes=3 * one + 100).put(key("d"), b"x" * 1000, {}, [], 0.0)
    assert [cache.find(key(t)) is not None for t in "abcd"] == [True, False, True, True]
    CompileCache(tmp_path, limit_bytes=1).put(key("e"), b"y", {}, [], 0.0)
    assert [cache.find(key(t)) is not None for t in "abcde"] == [False, False, False, False, True]


def test_what_a_killed_writer_left_is_evicted_too(tmp_path: Path) -> None:
    cache = CompileCache(tmp_path, limit_bytes=3000)
    kept = put(cache)
    orphan = kept.path.parent / ".half-written"
    orphan.write_bytes(b"z" * 5000)
    os.utime(orphan, (1, 1))
    put(cache, "other")
    assert not orphan.exists()
    assert cache.find(key()) is not None


def test_a_folder_that_cannot_be_written_costs_the_caching_only(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    cache = CompileCache(blocked)
    assert cache.find(key()) is None
    first, second = put(cache), put(cache, "other", b"second")
    assert (first.path.read_bytes(), second.path.read_bytes()) == (b"image", b"second")
    assert cache.find(key()) is None


def test_the_default_is_in_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_root() == Path("/somewhere/agentcompile/images")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_root() == Path.home() / ".cache/agentcompile/images"


WRITER = """
import sys
from pathlib import Path
from tests.runtime.test_compile_cache import key
from runtime.compile_cache import CompileCache
cache, me = CompileCache(Path(sys.argv[1])), sys.argv[2].encode()
for i in range(200):
    # Compilers may give different bytes for one source: the writers must not end up with each other's halves.
    cache.put(key(), me * 4000, {}, [], 0.0)
    found = cache.find(key())
    if found is not None:
        data = found.path.read_bytes()
        assert data in (b"a" * 4000, b"b" * 4000), data[:20]
"""


def test_two_processes_that_write_the_same_entry_never_show_a_mixed_one(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [subprocess.Popen([*command, name], cwd=ROOT, stderr=subprocess.PIPE) for name in "ab"]
    for writer in writers:
        _, said = writer.communicate(timeout=120)
        assert writer.returncode == 0, said.decode()
    cache = CompileCache(tmp_path)
    put(cache)
    assert cache.find(key()) is not None
    assert {p.suffix for p in files(cache)} == {".cubin", ".json"}
    assert json.loads(files(cache)[1].read_text())["size"] == 5
