from __future__ import annotations

from runtime.compiler_log import MAX_MESSAGES, parse_gnu, parse_nvrtc, parse_ptxas, quote_source
from runtime.errors import Level

NVRTC = """kernel.cu(7): error: identifier "y" is undefined
    x[0] = y;
           ^

/opt/include/cooperative_groups.h(167): catastrophic error: cannot open source file "cuda/std/type_traits"
  #  include <cuda/std/type_traits>
                                   ^

kernel.cu(9): warning #177-D: variable "unused" was declared but never referenced
    int unused;
        ^

Remark: The warnings can be suppressed with "-diag-suppress <warning-number>"

2 errors detected in the compilation of "prelude.cu".
\0"""

PTXAS = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'second' for 'sm_90a'
ptxas info    : Function properties for second
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers
ptxas info    : Compile time = 1.391 ms
ptxas info    : Compiling entry function 'first' for 'sm_90a'
ptxas info    : Function properties for first
    256 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Function properties for called_by_first
    64 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 256 bytes cumulative stack size, 320 bytes smem
"""

GNU = """prelude.cpp: In function 'void norm()':
kernel.cpp:3:33: error: 'y' was not declared in this scope
    3 |   int x = y;
      |           ^
kernel.cpp:5:1: warning: control reaches end of non-void function [-Wreturn-type]
prelude.cpp:22:7: note: declared here
/usr/bin/ld: /tmp/a.o: in function `norm':
kernel.cpp:(.text+0x5): undefined reference to `f()'
collect2: error: ld returned 1 exit status
"""


def test_nvrtc_messages_carry_the_candidates_own_line_column_and_text() -> None:
    first = parse_nvrtc(NVRTC, "kernel.cu")[0]
    assert (first.level, first.line, first.column) == (Level.ERROR, 7, 10)
    assert first.text == 'identifier "y" is undefined'
    assert first.excerpt == "x[0] = y;"


def test_nvrtc_messages_about_headers_carry_no_line_of_the_candidate() -> None:
    header = parse_nvrtc(NVRTC, "kernel.cu")[1]
    assert header.line is None
    assert header.file == "cooperative_groups.h:167"
    assert header.level is Level.ERROR


def test_warnings_come_after_errors_with_their_number() -> None:
    last = parse_nvrtc(NVRTC, "kernel.cu")[-1]
    assert (last.level, last.line, last.code) == (Level.WARNING, 9, "177-D")


def test_ptxas_errors_are_messages_too() -> None:
    log = "ptxas error   : Entry function 'k' uses too much shared data (0x40000 bytes, 0x38c00 max)\n"
    (message,) = parse_nvrtc(log, "kernel.cu")
    assert message.level is Level.ERROR
    assert "too much shared data" in message.text


def test_ptxas_resources_are_found_by_entry_and_not_mixed_up_with_called_functions() -> None:
    found = parse_ptxas(PTXAS)
    assert set(found) == {"first", "second"}
    first = found["first"]
    assert (first.registers, first.shared_bytes, first.stack_bytes, first.barriers) == (32, 320, 256, 1)
    assert (first.spill_store_bytes, first.spill_load_bytes, first.spills) == (12, 16, True)
    assert found["second"].registers == 8
    assert not found["second"].spills


def test_a_log_without_a_resource_report_has_no_resources() -> None:
    assert parse_ptxas("ptxas info    : 0 bytes gmem\n") == {}


def test_gnu_messages_are_parsed_and_the_linkers_are_among_them() -> None:
    undeclared, undefined, warning, note = parse_gnu(GNU, "kernel.cpp")
    assert (undeclared.line, undeclared.column, undeclared.excerpt) == (3, 33, "int x = y;")
    assert undefined.text == "undefined reference to `f()'"
    assert (warning.level, warning.code) == (Level.WARNING, "-Wreturn-type")
    assert "[-W" not in warning.text
    assert (note.level, note.line, note.file) == (Level.NOTE, None, "prelude.cpp:22")


def test_the_line_is_quoted_from_the_source_where_the_compiler_did_not() -> None:
    text = 'int prelude;\n#line 1 "kernel.cpp"\nfirst;\n  second;\n'
    messages = parse_gnu("kernel.cpp:2:3: error: bad\nkernel.cpp:99:1: error: past the end\n", "kernel.cpp")
    quoted = quote_source(messages, text, "kernel.cpp")
    assert [m.excerpt for m in quoted] == ["second;", ""]


def test_a_flood_of_messages_is_cut() -> None:
    log = "".join(f"kernel.cpp:{i}:1: error: number {i}\n" for i in range(1, 500))
    assert len(parse_gnu(log, "kernel.cpp")) == MAX_MESSAGES


def test_a_compiler_that_hit_a_limit_says_so() -> None:
    log = """g++: internal compiler error: File size limit exceeded signal terminated program as
cc1plus: out of memory allocating 65536 bytes after a total of 19136512 bytes
virtual memory exhausted: Cannot allocate memory
/usr/bin/ld: final link failed: File too large
"""
    texts = [m.text for m in parse_gnu(log, "kernel.cpp")]
    assert texts[0].startswith("File size limit exceeded")
    assert texts[1].startswith("out of memory")
    assert texts[2].startswith("virtual memory exhausted")
    assert texts[3] == "final link failed: File too large"
