"""The processes that run a candidate, and what can and cannot be said about what comes back.

    judge                     holds inputs, expected values and the clock of last resort; decides
     └ supervisor             ``python -m validator.worker``; forks, relays, times, kills; never runs candidate code
        └ shell               waits, so that the next one is the first process of its namespaces
           └ resident         confined (validator.sandbox); loads the candidate, calls it, says "done"

The resident shares two things with the outside: a block of memory (validator.arena) and one socket to its supervisor.

What is proven:

- Expected values, seeds and the judge's copy of the inputs are never in the resident's address space: the judge makes
  them, and the arena receives inputs and poison alone.
- The channel between judge and supervisor is authenticated by a key that is drawn after the resident was forked, so
  no page the candidate can read ever held it. What the supervisor reports is what the kernel told it (exit status,
  signal, a deadline passed) or that a reply arrived.
- A process that ends, crashes, closes its descriptors, or writes anything but the reply expected has failed: a reply
  must carry the token of its request, and tokens are drawn for each request and sent with it.
- After every call the resident is stopped (SIGSTOP, all its threads seen stopped) before the judge reads the arena.
  Work left to a background thread is therefore missing from the outputs; and time is taken by the supervisor.

What is not: code that shares an address space with the Python that serves it can find a token there and reply early.
It gains nothing by that. The reply carries no verdict and no number that the judge believes; outputs that are not
complete at that moment are wrong, every timed output is checked like any other, and fresh inputs before each call leave
nothing that could have been computed before it.
"""

from __future__ import annotations

from validator.worker.client import Resident, Worker, WorkerFailure

__all__ = ["Resident", "Worker", "WorkerFailure"]
