"""What could not be captured: the construct, the line of source it comes from, and what happens instead."""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass
from pathlib import Path

from generator.ir import Location

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
# Frames of these are machinery: the line a reader can change is above them. Code made at run time has no file.
_MACHINERY = ("/torch/", str(Path(__file__).parent), "/functools.py", "/contextlib.py", "/transformers/utils/", "<")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that stays with the framework.

    ``construct`` names the operator or the language construct, ``module`` the qualified path of the module it is in
    (empty at the root), ``message`` says in one line what is wrong and what is done instead.
    """

    construct: str
    message: str
    where: Location | None = None
    module: str = ""

    def __str__(self) -> str:
        place = f"{self.where}" if self.where is not None else self.module or "the module"
        return f"{place}: {self.construct}: {self.message}"


def location_of_trace(trace: str | None) -> Location | None:
    """The innermost frame of a formatted stack that is not the framework's own."""
    frames = [
        Location(short_path(match["file"]), int(match["line"]), match["function"])
        for match in _FRAME.finditer(trace or "")
        if not any(part in match["file"] for part in _MACHINERY)
    ]
    return frames[-1] if frames else None


def problem_of_exception(error: BaseException, module: str) -> Problem:
    """What a failed trace says, with the innermost line of the user's own source in it."""
    name = type(error).__name__
    text = str(error)
    frames = "".join(traceback.format_tb(error.__traceback__))
    where = location_of_trace(frames)
    return Problem(_construct(name, text), f"{_first_line(text) or name}; runs in the framework", where, module)


def short_path(file: str) -> str:
    """A path as a reader knows it: below the packages' folder, or below the working folder, else as it is."""
    for marker in ("/site-packages/", "/dist-packages/"):
        if marker in file:
            return file.rsplit(marker, 1)[1]
    path = Path(file)
    return path.relative_to(Path.cwd()).as_posix() if path.is_relative_to(Path.cwd()) else file


def _construct(name: str, text: str) -> str:
    lowered = text.lower()
    if "data-dependent" in lowered or "datadependent" in name.lower() or "unbacked" in lowered:
        return "control flow or a size that depends on data"
    if "constraints violated" in lowered or "dynamic_shapes" in lowered or "specializ" in lowered:
        return "dynamic size"
    if "fake tensor" in lowered or "fakeimpl" in lowered or "no meta" in lowered or "not implemented for" in lowered:
        return "operator without a shape rule"
    return f"graph break ({name})"


def _first_line(text: str) -> str:
    lines = [" ".join(line.split()) for line in text.splitlines()]
    first = next((line for line in lines if line), "")
    return first if len(first) <= 200 else first[:197] + "..."
