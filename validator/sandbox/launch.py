"""``python -m validator.sandbox.launch PROGRAM FOLDER``: become PROGRAM, confined to reading FOLDER.

Addresses are not randomised: the address sanitizer's shadow may not fit beside a randomised heap on recent kernels.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from validator.sandbox import Limits, Profile, confine, fork_into_namespaces

_ADDR_NO_RANDOMIZE = 0x0040000


def main() -> None:
    program, folder = (Path(word).resolve() for word in sys.argv[1:3])
    loaders = [*Path("/lib64").glob("ld-linux*"), *Path("/lib").glob("ld-linux*"), *Path("/lib").glob("ld-musl*")]
    profile = Profile(
        kind="program",
        # The sanitizers map terabytes of shadow they never touch, so the address space has no limit.
        limits=Limits(cpu_seconds=300, memory_bytes=None),
        readable=(folder,),
        executable=(program, *(path.resolve() for path in loaders)),
    )
    confine(profile, fork_into_namespaces())
    ctypes.CDLL(None).personality(ctypes.c_ulong(_ADDR_NO_RANDOMIZE))
    os.chdir(folder)
    os.execv(program, [str(program)])  # noqa: S606 - that is the purpose


if __name__ == "__main__":
    main()
