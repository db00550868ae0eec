"""A whole run over a library on disk: which files, which of them are known already, which findings are wanted.

Nothing heavy is imported before it is needed: when no file changed, the answer is read from the cache without
loading the schema, the parser or a single rule.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kb.cli.failure import Failure
from kb.diagnostic import Diagnostic, Severity
from kb.lint.cache import Cache, content_key, run_key
from kb.place import FOLDERS, MAX_BYTES, is_note, kind_of, read_regular_file

if TYPE_CHECKING:
    from kb.lint.engine import FileReport

MAX_LEVELS = 4


@dataclass(frozen=True, slots=True)
class Outcome:
    """The findings of a run, with paths as a person at the shell would write them, and how much was looked at."""

    findings: tuple[Diagnostic, ...]
    principles: int
    contracts: int
    unreadable: bool
    texts: Mapping[str, bytes]

    def count(self, severity: Severity) -> int:
        return sum(f.severity is severity for f in self.findings)


def check(
    root: Path,
    paths: Sequence[Path] = (),
    *,
    codes: Collection[str] | None,
    today: date,
    cache: Cache | None,
) -> Outcome:
    """Check the library at ``root``; report what is found in ``paths``, or in all of it.

    A path may be a file of the library, a folder of it, or a draft outside of it, which is then checked as if it
    stood in the library. Raises Failure for a path that does not exist or holds no entry.
    """
    files = _listed(root)
    if not files and not paths:
        raise Failure(f"{root}: holds no principles/ and no contracts/ (--library names another folder)")
    drafts, wanted = _chosen(root, paths, files)
    top = str(root)
    sources = {path: os.path.join(top, path) for path in files} | drafts  # noqa: PTH118 - ten thousand paths
    inputs = _Inputs({path: _read(source) for path, source in sources.items()}, _beside(root), today)
    if cache is not None and codes is None and cache.run[0] == inputs.key:
        findings = [_diagnostic(path, data) for path, data in cache.run[1]]
    else:
        findings = _check(inputs, codes, cache, keep=not drafts)
    findings = [f for f in findings if wanted is None or f.path in wanted]
    shown = {path: _shown(sources[path]) for path in {f.path for f in findings}}
    selected = files if wanted is None else wanted
    return Outcome(
        tuple(sorted(_at(f, shown[f.path]) for f in findings)),
        sum(p.startswith("principles/") for p in selected),
        sum(p.startswith("contracts/") for p in selected),
        any(inputs.contents[path][1] for path in selected),
        {name: inputs.contents[path][0] for path, name in shown.items()},
    )


def existence(root: Path) -> Callable[[str], bool | None]:
    """Tells whether a record or kernel that evidence links to is there; None where nothing can be said."""
    return _exists_in(_beside(root))


class _Inputs:
    """Everything a run depends on: the bytes of each file or why there are none, what is beside them, and the day."""

    def __init__(self, contents: Mapping[str, tuple[bytes, str]], beside: frozenset[str] | None, today: date) -> None:
        self.contents, self.beside, self.today = contents, beside, today
        self.keys = {path: content_key(data or problem.encode()) for path, (data, problem) in contents.items()}
        self.key = run_key({**self.keys, "": f"{today} {sorted(beside) if beside is not None else None}"})


def _check(inputs: _Inputs, codes: Collection[str] | None, cache: Cache | None, *, keep: bool) -> list[Diagnostic]:
    """Reports of unchanged files from the cache, of the others from the rules; then the rules over all of them."""
    from kb.lint import record
    from kb.lint.engine import check_library, settle, view_of
    from kb.lint.registry import by_code

    reports: dict[str, FileReport] = {}
    for path in sorted(inputs.contents):
        kept = cache.report(path, inputs.keys[path]) if cache is not None else None
        report = record.load(path, kept) if kept is not None else None
        reports[path] = report if report is not None else _report(path, *inputs.contents[path])
    view = view_of(reports.values(), inputs.today, _exists_in(inputs.beside))
    found = check_library(reports.values(), view)
    settled = settle(reports.values(), found, by_code(), inputs.today)
    if cache is not None and keep:
        # A file that could not be read has no bytes to be known by.
        files = {p: (inputs.keys[p], record.dump(r)) for p, r in reports.items() if not inputs.contents[p][1]}
        cache.save(files, (inputs.key, [[f.path, _data(f)] for f in settled]))
    return settled if codes is None else settle(reports.values(), found, codes, inputs.today)


def _report(path: str, data: bytes, problem: str) -> FileReport:
    from kb.library import parse_entry
    from kb.lint.engine import FileReport, check_entry, misplaced
    from kb.yaml import load_bytes

    if problem:
        return FileReport(path, (Diagnostic(path, 0, 0, "AC001", problem),), None)
    kind = kind_of(path)
    return check_entry(parse_entry(path, kind, load_bytes(data))) if kind is not None else misplaced(path)


def _listed(root: Path) -> dict[str, None]:
    """Paths below the root of all files that should be entries, sorted."""
    found = []
    for folder in FOLDERS:
        for at, folders, names in os.walk(root / folder, followlinks=True):
            below = Path(at).relative_to(root).as_posix()
            # Links to folders are followed as the loader does; the limit ends a link that leads back to itself.
            folders[:] = sorted(f for f in folders if not f.startswith(".")) if below.count("/") < MAX_LEVELS else []
            found += [f"{below}/{name}" for name in names if not is_note(name)]
    return dict.fromkeys(sorted(found))


def _chosen(root: Path, paths: Sequence[Path], files: Collection[str]) -> tuple[dict[str, str], frozenset[str] | None]:
    """Drafts from outside by the path they stand in for, and the paths to report on (None: all)."""
    if not paths:
        return {}, None
    top = root.resolve()
    drafts: dict[str, str] = {}
    wanted: set[str] = set()
    for path in paths:
        if not path.exists():
            raise Failure(f"{path}: no such file or folder")
        full = path.resolve()
        below = full.relative_to(top).as_posix() if full.is_relative_to(top) else None
        if below is not None and full.is_dir():
            inside = {f for f in files if below == "." or f.startswith(f"{below}/")}
            if not inside:
                raise Failure(f"{path}: no principles or contracts below it")
            wanted |= inside
        elif below is not None and below in files:
            wanted.add(below)
        elif full.is_dir():
            raise Failure(f"{path}: outside the library {root} (--library names another)")
        elif full.suffix != ".yaml":
            raise Failure(f"{path}: not a .yaml file")
        else:
            stand_in = _stand_in(full)
            drafts[stand_in] = str(path)
            wanted.add(stand_in)
    return drafts, frozenset(wanted)


def _stand_in(path: Path) -> str:
    """Where in the library a file from outside belongs: by its own folders, else by its content."""
    match path.parts:
        case [*_, "principles", family, name]:
            return f"principles/{family}/{name}"
        case [*_, "contracts", name]:
            return f"contracts/{name}"
    from kb.yaml import load_file

    value = load_file(path).value or {}
    entry_id = value.get("id")
    if "tensors" in value or "dims" in value:
        return f"contracts/{entry_id if isinstance(entry_id, str) else path.stem}.yaml"
    family = path.parent.name or "drafts"
    return f"principles/{entry_id}.yaml" if _is_principle_id(entry_id) else f"principles/{family}/{path.name}"


def _is_principle_id(value: object) -> bool:
    return isinstance(value, str) and value.count("/") == 1 and not value.startswith("/") and ".." not in value


def _read(path: str) -> tuple[bytes, str]:
    """The bytes of a file, and why there are none."""
    try:
        return read_regular_file(path, MAX_BYTES + 1), ""
    except OSError as error:
        return b"", f"cannot be read: {error.strerror or error}"


def _beside(root: Path) -> frozenset[str] | None:
    """Records and kernels that evidence may link to; None where the library is installed without them."""
    results = root / "bench" / "results"
    if not results.is_dir():
        return None
    found = {p.relative_to(root).as_posix() for p in results.rglob("*") if p.is_file()}
    found |= {p.relative_to(root).as_posix() for p in (root / "kernels").glob("*/*/*") if p.is_dir()}
    return frozenset(found)


def _exists_in(beside: frozenset[str] | None) -> Callable[[str], bool | None]:
    digests = {path.rsplit("/", 1)[-1] for path in beside or () if path.startswith("kernels/")}

    def exists(path: str) -> bool | None:
        if beside is None:
            return None
        if path.startswith("kernels/"):
            return path.rsplit("/", 1)[-1] in digests
        return path in beside

    return exists


def _shown(path: str) -> str:
    full = Path(os.path.normpath(Path.cwd() / path))
    return full.relative_to(Path.cwd()).as_posix() if full.is_relative_to(Path.cwd()) else full.as_posix()


def _at(finding: Diagnostic, path: str) -> Diagnostic:
    return replace(finding, path=path)


def _data(finding: Diagnostic) -> list[Any]:
    return [finding.line, finding.column, finding.code, finding.message, finding.severity.value, finding.fix]


def _diagnostic(path: str, data: Iterable[Any]) -> Diagnostic:
    line, column, code, message, severity, fix = data
    return Diagnostic(path, line, column, code, message, Severity(severity), fix)
