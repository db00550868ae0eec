"""Run by the fault tests, until it is killed or done: admits kernels and revokes every third."""

from __future__ import annotations

import sys
from pathlib import Path

from kb.store import KernelStore
from tests.kb.store.fabricate import make_kernel


def write_kernels(root: Path, first: int, count: int) -> None:
    store = KernelStore(root)
    for i in range(first, first + count):
        candidate, manifest = make_kernel(i)
        store.admit(candidate, manifest, [{"event": "prompt", "text": "p" * 4000}])
        if i % 3 == 0:
            store.revoke(candidate.digest, "for the test")


if __name__ == "__main__":
    print("ready", flush=True)
    write_kernels(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
