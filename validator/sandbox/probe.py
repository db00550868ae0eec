"""What this system offers, found by doing it in a throw-away process."""

from __future__ import annotations

import json
import os

from validator.sandbox.confine import Profile, confine, fork_into_namespaces

LAYERS = {
    "session": "always",
    "resource-limits": "setrlimit",
    "user-namespace": "enable unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1, or AppArmor)",
    "pid-namespace": "needs user namespaces or root",
    "network-namespace": "needs user namespaces or root",
    "ipc-namespace": "needs user namespaces or root",
    "read-only-filesystem": "needs a mount namespace and Linux 5.12",
    "own-proc": "needs a PID namespace; containers that mask /proc forbid it",
    "no-capabilities": "capset",
    "no-new-privileges": "prctl",
    "landlock": "needs Linux 5.13 with landlock among the active security modules",
    "seccomp": "needs a kernel with CONFIG_SECCOMP_FILTER",
}


def available_layers() -> dict[str, str]:
    """Every layer: ``active``, or what it would take. Forks; call it from a process with one thread."""
    found = _try_all()
    return {name: "active" if name in found else need for name, need in LAYERS.items()}


def _try_all() -> set[str]:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            profile = Profile("kernel")
            layers = confine(profile, fork_into_namespaces())
            os.write(writer, json.dumps(layers).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    try:
        return set(json.loads(answer))
    except ValueError:
        return set()
