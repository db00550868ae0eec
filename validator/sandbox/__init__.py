"""Isolation of the process that runs a candidate: the strongest the system offers, and what of it is active.

``confine`` applies layer after layer and never fails for want of one; each is then checked inside the confined process
by what the kernel says or by trying what must not work, and only layers that hold are reported. Layers:

``session``              a process group of its own, killed as one
``resource-limits``      processor time, file size, processes, memory (not with CUDA), no core dumps
``user-namespace``       nobody inside, no privilege outside
``pid-namespace``        its own process tree: when its first process dies, the kernel kills the rest
``network-namespace``    no interface but an unconfigured loopback
``ipc-namespace``        no shared memory or queues of other processes
``read-only-filesystem`` every mount read-only, in a mount namespace of its own
``own-proc``             /proc shows its own processes only
``no-capabilities``      all dropped
``no-new-privileges``    no setuid program gives any back
``landlock``             reads the library it runs and the system's, writes and starts nothing
``seccomp``              system calls by allow-list; sockets, programs, new processes and tracing end it

What they do not do: hide secrets in the process's own memory from code that runs in it. Nothing secret is there.
"""

from __future__ import annotations

from validator.sandbox.confine import Profile, confine, fork_into_namespaces
from validator.sandbox.limits import Limits
from validator.sandbox.probe import available_layers

__all__ = ["Limits", "Profile", "available_layers", "confine", "fork_into_namespaces"]
