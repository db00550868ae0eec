"""What a compiled image says about itself: imported symbols, code that runs at load, data that stays writable.

The source can hide things from rules over its tokens; the linker's tables cannot. Reads ELF, which shared libraries
and cubins both are.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kb.dtype import Target

# Sections that every shared library has, and how large they are when a source adds nothing.
_USUAL_BYTES = {
    ".init_array": 8, ".fini_array": 8, ".bss": 16, ".data": 16, ".tbss": 0, ".tdata": 0, ".preinit_array": 0,
    ".ctors": 0,    ".dtors": 0,
}  # fmt: skip
_WRITABLE = frozenset({".bss", ".data", ".tbss", ".tdata"})
# The last is where the compiler keeps the address of its own exception handler.
_USUAL_VARIABLES = ("completed.", "__dso_handle", "__TMC_END__", "DW.ref.__gxx_personality_v0")
_RUNS = frozenset({".init_array", ".preinit_array", ".ctors"})
_RUNS_AT_END = frozenset({".fini_array", ".dtors"})

_IMPORTS = re.compile(
    r"""^(GOMP_\w+|omp_get_(thread_num|num_threads|max_threads|num_procs|level|team_num|num_teams|thread_limit|in_parallel)
    |omp_in_parallel|omp_set_num_threads|__kmpc_\w+
    |mem(cpy|set|move|cmp|chr)|__mem(cpy|set|move)_chk|bcmp|strlen|malloc|free|calloc|realloc|aligned_alloc|posix_memalign
    |_Zn[wa]\w*|_Zd[la]\w*|__stack_chk_fail|__cxa_(finalize|guard_\w+|pure_virtual|atexit|begin_catch|end_catch
    |throw_bad_array_new_length|rethrow|allocate_exception|free_exception|throw)|__gxx_personality_v0|_Unwind_\w+
    |_ZSt\w+|_ZNSt\w+|_ZNKSt\w+|_ZT[ISV]\w+|__gmon_start__|_ITM_\w+|__tls_get_addr|__assert_fail
    |(a?(sin|cos|tan)h?|atan2|exp|exp2|expm1|log|log2|log10|log1p|pow|sqrt|cbrt|hypot|fabs|floor|ceil|round|roundeven|rint
    |nearbyint|trunc|fmod|remainder|fma|fmax|fmin|fdim|erfc?|lgamma|tgamma|ldexp|frexp|scalbn|scalbln|ilogb|logb|modf
    |copysign|nextafter|lround|llround|lrint|llrint|sincos)[fl]?|__(exp|log|pow|sin|cos|exp2|log2)f?_finite
    |_ZGV\w+|__(extend|trunc|fix|float)\w+|_dl_relocate_static_pie|abs|labs|qsort|__cpu_model|__cpu_indicator_init)$""",
    re.VERBOSE,
)
_OBJECT, _FUNCTION = 1, 2
# Variables of NVIDIA's headers, as their mangled names begin.
# What the allowed headers themselves define; the static gate has seen every variable of the source by then.
_HEADER_NAMESPACES = (
    *("4cuda3std", "4cuda3__", "4cuda3ptx", "4cuda3mr", "18cooperative_groups", "3cub", "6thrust", "5nvcuda"),
    "__nv_atomic",
)
# An aggregate the compiler copies from, such as the zeros of `return {};`. No source can choose such a name: the static
# gate refuses a dollar sign.
_COMPILERS_OWN = re.compile(r"\$[0-9]+$")
_OUR_OWN = frozenset({"agentcompile_set_threads"})


@dataclass(frozen=True, slots=True)
class ImageProblem:
    """``code`` is stable."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    kind: int
    offset: int
    size: int
    link: int
    entry: int


def image_problems(
    path: Path, target: Target, entries: Sequence[str], constants: Collection[str] = ()
) -> list[ImageProblem]:
    """What is wrong with a compiled candidate. Raises ValueError when the file is not ELF.

    ``constants``: names that the source and its prelude declare constant. A cubin keeps those beside true variables and
    does not tell them apart.
    """
    data = path.read_bytes()
    sections = _sections(data)
    if target is Target.CUDA:
        return list(_cubin(data, sections, constants))
    return [*_library(sections), *_variables(data, sections), *_symbols(data, sections, entries)]


def _cubin(data: bytes, sections: Sequence[_Section], constants: Collection[str]) -> Iterator[ImageProblem]:
    for name, size, section, kind in _symbol_table(data, sections, ".symtab"):
        if kind != _OBJECT or not (0 < section < len(sections) and sections[section].name.startswith(".nv.global")):
            continue
        if name in constants or any(part in name for part in _HEADER_NAMESPACES):
            continue
        if _COMPILERS_OWN.search(name):
            continue
        if name.startswith("_Z") and any(f"{len(known)}{known}" in name for known in constants):
            continue
        message = (
            f"the device variable '{name}' ({size} bytes) keeps state between calls; the workspace is the place for it"
        )
        yield ImageProblem("state-between-calls", message)


def _library(sections: Sequence[_Section]) -> Iterator[ImageProblem]:
    for section in sections:
        extra = section.size - _USUAL_BYTES.get(section.name, section.size)
        if extra <= 0:
            continue
        if section.name in _RUNS or section.name in _RUNS_AT_END:
            when = "loaded" if section.name in _RUNS else "unloaded"
            message = f"code that runs when the library is {when} (an initializer of a global that is not constant)"
            yield ImageProblem("runs-at-load", message)
        else:
            message = (
                f"{section.size} bytes of writable variables ({section.name}); the workspace is the place for state"
            )
            yield ImageProblem("state-between-calls", message)


def _variables(data: bytes, sections: Sequence[_Section]) -> Iterator[ImageProblem]:
    """Variables by name: small ones fit in what alignment leaves and do not show in a section's size."""
    for name, size, section, _ in _symbol_table(data, sections, ".symtab"):
        writable = 0 < section < len(sections) and sections[section].name in _WRITABLE
        if writable and size and not name.startswith(_USUAL_VARIABLES):
            message = (
                f"the variable '{name}' ({size} bytes) keeps state between calls; the workspace is the place for it"
            )
            yield ImageProblem("state-between-calls", message)


def _symbols(data: bytes, sections: Sequence[_Section], entries: Sequence[str]) -> Iterator[ImageProblem]:
    for name, _, section, kind in _symbol_table(data, sections, ".dynsym"):
        if section == 0:
            if name and not _IMPORTS.match(name):
                yield ImageProblem("forbidden-import", f"the library calls '{name}', which a kernel may not use")
        elif kind == _FUNCTION and not name.startswith("_") and name not in entries and name not in _OUR_OWN:
            yield ImageProblem("forbidden-export", f"the library defines '{name}', which is not an entry of the plan")


def _symbol_table(data: bytes, sections: Sequence[_Section], table_name: str) -> Iterator[tuple[str, int, int, int]]:
    """(name, size, section, kind) of every symbol of a table; section 0 is undefined."""
    table = next((s for s in sections if s.name == table_name), None)
    if table is None:
        return
    strings = sections[table.link]
    for i in range(1, table.size // 24):
        name_at, info, _, section, _, size = struct.unpack_from("<IBBHQQ", data, table.offset + 24 * i)
        yield _text(data, strings.offset + name_at), size, section, info & 15


def _sections(data: bytes) -> list[_Section]:
    if len(data) < 64 or data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    offset = struct.unpack_from("<Q", data, 40)[0]
    size, count, names = struct.unpack_from("<HHH", data, 58)
    if offset + size * count > len(data) or (count and names >= count):
        raise ValueError("a damaged ELF file")
    raw = [struct.unpack_from("<IIQQQQIIQQ", data, offset + size * i) for i in range(count)]
    start = raw[names][4] if count else 0
    return [_Section(_text(data, start + r[0]), r[1], r[4], r[5], r[6], r[9]) for r in raw]


def _text(data: bytes, start: int) -> str:
    end = data.find(b"\0", start)
    return data[start:end].decode("ascii", "replace")
