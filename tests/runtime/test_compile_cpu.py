from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from runtime.compile_cache import CompileCache
from runtime.compile_cpu import CompilerLimits, compile_cpu, find_compiler
from runtime.errors import CompileError, MissingToolError

GOOD = 'extern "C" void run(int* x) { *x = 7; }\n'


def marked(source: str) -> str:
    """``source`` behind a prelude of two lines."""
    return f'#include <cstdint>\nconstexpr int n = 3;\n#line 1 "kernel.cpp"\n{source}'


def test_a_library_is_built_once_and_found_again(images: CompileCache) -> None:
    first = compile_cpu(marked(GOOD), images)
    again = compile_cpu(marked(GOOD), images)
    assert first.path.read_bytes()[:4] == b"\x7fELF"
    assert again.cached
    assert again.path == first.path
    assert "-ffp-contract=fast" in first.options
    assert any(o.startswith(("-march=native", "-mcpu=native")) for o in first.options)


def test_an_error_points_at_the_candidates_own_line_and_quotes_it(images: CompileCache) -> None:
    with pytest.raises(CompileError) as caught:
        compile_cpu(marked('extern "C" void run() {\n  int x = nowhere;\n}\n'), images)
    error = caught.value.errors[0]
    assert (error.line, error.excerpt) == (2, "int x = nowhere;")
    assert "nowhere" in error.text
    assert "line 2" in str(caught.value)


def test_an_undefined_function_is_an_error_of_the_linker(images: CompileCache) -> None:
    with pytest.raises(CompileError, match=r"linker: error: undefined reference to `missing\(\)'"):
        compile_cpu(marked('void missing(); extern "C" void run() { missing(); }\n'), images)


def test_warnings_of_the_candidate_are_kept_and_those_of_unused_names_are_not_asked_for(images: CompileCache) -> None:
    source = 'static void unused() {}\nextern "C" int run(int x) {\n  if (x) return 1;\n}\n'
    (warning,) = compile_cpu(marked(source), images).messages
    assert (warning.line, warning.code) == (4, "-Wreturn-type")


def test_a_compilation_that_does_not_end_is_stopped(images: CompileCache) -> None:
    # Doubling instantiations: no limit on loops or constant expressions ends them, and nothing is remembered twice.
    endless = (
        "template <int depth, long path> struct Tree {\n"
        "  static constexpr long size = Tree<depth - 1, 2 * path>::size + Tree<depth - 1, 2 * path + 1>::size;\n"
        "};\n"
        "template <long path> struct Tree<0, path> { static constexpr long size = 1; };\n"
    )
    source = endless + 'extern "C" long run() { return Tree<24, 1>::size; }\n'
    with pytest.raises(CompileError, match=r"ran longer than 0\.5 s and was stopped"):
        compile_cpu(marked(f'#pragma GCC optimize("O0")\n{source}'), images, CompilerLimits(seconds=0.5))


def test_a_compilation_that_eats_memory_is_stopped(images: CompileCache, tmp_path: Path) -> None:
    source = GOOD + "int kept[100000000] = {1};\n"
    with pytest.raises(CompileError):
        compile_cpu(marked(source), images, CompilerLimits(memory_bytes=300 << 20))
    compile_cpu(marked(GOOD), CompileCache(tmp_path), CompilerLimits(memory_bytes=300 << 20))


def test_a_library_that_is_too_large_is_refused(images: CompileCache) -> None:
    with pytest.raises(CompileError):
        compile_cpu(marked(GOOD + "int kept[10000000] = {1};\n"), images, CompilerLimits(file_bytes=1 << 20))


def test_the_compiler_of_the_environment_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrapper = tmp_path / "mine"
    real = find_compiler().command[0]
    wrapper.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then echo "mine 1.0"; exit 0; fi\nexec {real} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("CXX", f"{wrapper} -DMINE")
    image = compile_cpu(marked("#ifndef MINE\n#error not mine\n#endif\n" + GOOD), CompileCache(tmp_path / "cache"))
    assert image.compiler.startswith(f"mine 1.0, {wrapper} -DMINE")


def test_no_compiler_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingToolError, match="apt-get install"):
        find_compiler()
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(MissingToolError, match="CXX=no-such-compiler does not run"):
        find_compiler()


def test_the_compiler_sees_none_of_the_callers_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images: CompileCache
) -> None:
    poisoned = tmp_path / "cstdint"
    poisoned.write_text("#error read from CPLUS_INCLUDE_PATH\n")
    monkeypatch.setenv("CPLUS_INCLUDE_PATH", str(tmp_path))
    assert compile_cpu(marked(GOOD + "// environment\n"), images).path.is_file()


def test_the_exported_entries_are_the_sources_and_the_thread_setter(images: CompileCache) -> None:
    image = compile_cpu(marked(GOOD), images)
    listed = subprocess.run(["nm", "-D", "--defined-only", str(image.path)], capture_output=True, text=True, check=True)
    names = {line.split()[-1] for line in listed.stdout.splitlines()}
    assert {"run", "agentcompile_set_threads"} <= names
