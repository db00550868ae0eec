"""What a source for newer GPUs may hold that an older one has no instruction for, and does not need."""

from __future__ import annotations

import re

_DEPENDENT = re.compile(r"griddepcontrol\.(?:wait|launch_dependents)\s*;")


def without_dependent_launch(source: str) -> str:
    """``source`` without the device halves of programmatic dependent launch, every line where it was.

    Where no launch can start early, the wait has nothing to wait for and the trigger lets nobody in; the launcher
    leaves the attribute out there as well. What stays is an empty asm statement, with its clobbers.
    """
    return _DEPENDENT.sub("", source)
