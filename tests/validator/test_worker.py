"""What a candidate may do to its process, and what the judge then sees."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kb.candidate import Candidate, Launch, LaunchPlan
from kb.contract import Contract
from kb.dtype import DType, Target
from runtime.compile_cache import CompileCache
from runtime.kernel import Compiled, compile_candidate
from validator.arena import Arena, plan_layout
from validator.inputs import make_inputs
from validator.sandbox import Limits
from validator.worker import Resident, Worker, WorkerFailure

# One source for every fault, so that it is compiled once; the scalar `eps` chooses.
FAULTS = r"""
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

static void honest(const T* x, const T* weight, T* out) {
  for (int t = 0; t < num_tokens; ++t) {
    float sum = 0.0f;
    for (int i = 0; i < hidden_size; ++i) {
      const float v = to_float(x[t * hidden_size + i]);
      sum += v * v;
    }
    const float r = 1.0f / std::sqrt(sum / hidden_size + 1e-6f);
    for (int i = 0; i < hidden_size; ++i) {
      const T normed = from_float<T>(to_float(x[t * hidden_size + i]) * r);
      out[t * hidden_size + i] = from_float<T>(to_float(normed) * to_float(weight[i]));
    }
  }
}

extern "C" void faulty(const T* __restrict__ x, T* __restrict__ residual, const T* __restrict__ weight,
                       T* __restrict__ out, float eps, void* __restrict__ workspace) {
  char garbage[256];
  std::memset(garbage, 'x', sizeof garbage);
  switch (int(eps)) {
    case 1: *(volatile int*)8 = 1; break;
    case 2: for (volatile int i = 0;; i = 1) {} break;
    case 3: std::exit(0);
    case 4: _exit(0);
    case 5: for (;;) fork();
    case 6: out[num_tokens * hidden_size + 7] = out[0]; break;
    case 7: for (int fd = 0; fd < 1024; ++fd) close(fd); break;
    case 8: for (int fd = 0; fd < 64; ++fd) if (write(fd, garbage, sizeof garbage) < 0) continue; break;
    case 9: socket(AF_INET, SOCK_STREAM, 0); break;
    case 10: execl("/bin/true", "true", (char*)nullptr); break;
    case 11: std::abort();
    case 12: std::thread([=] { usleep(300000); honest(x, weight, out); }).detach(); return;
    case 13: kill(getppid(), SIGKILL); break;
    case 14: { int fd = open("/tmp/written-by-a-kernel", O_CREAT | O_WRONLY, 0600);
               if (fd >= 0 && write(fd, garbage, 1) == 1) return; } break;
    case 15: { auto* p = (char*)mmap(nullptr, 1ull << 40, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
               if (p != MAP_FAILED) return; } break;
    case 16: { int fd = open("/etc/shadow", O_RDONLY); if (fd >= 0) return; } break;
    case 17: if (mmap(nullptr, 4096, PROT_EXEC | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED) return;
             break;
    case 18: signal(SIGTERM, SIG_IGN); for (volatile int i = 0;; i = 1) {} break;
    default: break;
  }
  honest(x, weight, out);
}
"""
DIMS = {"num_tokens": 2, "hidden_size": 64, "has_residual": 0}


@pytest.fixture(scope="module")
def faulty(contracts: dict[str, Contract], images: CompileCache) -> Compiled:
    candidate = Candidate(
        contract="residual_rmsnorm",
        target=Target.CPU,
        source=FAULTS,
        plan=LaunchPlan(launches=(Launch(entry="faulty"),)),
    )
    return compile_candidate(candidate, contracts["residual_rmsnorm"], DIMS, DType.FLOAT32, cache=images)


@pytest.fixture
def resident(cpu_worker: Worker, images: CompileCache) -> Iterator[Resident]:
    with cpu_worker.open(readable=[images.root]) as opened:
        yield opened


def run(resident: Resident, compiled: Compiled, fault: int, timeout: float = 5.0) -> Arena:
    contract = compiled.signature.contract
    layout = plan_layout(contract, DIMS, DType.FLOAT32, 0)
    number, memory = resident.share(layout.nbytes)
    arena = Arena(contract, layout, memory, torch.Generator().manual_seed(1), False)
    inputs = make_inputs(contract, DIMS, DType.FLOAT32, "normal", 3)
    arena.fill(inputs)
    kernel, _ = resident.load(compiled)
    call = resident.bind(kernel, number, layout, {"eps": float(fault)})
    resident.call([call], timeout)
    return arena


def test_an_honest_call_writes_every_output_and_touches_no_guard(resident: Resident, faulty: Compiled) -> None:
    arena = run(resident, faulty, 0)
    assert not arena.unwritten("out").any()
    assert arena.damaged_guard() is None


def test_time_is_taken_outside_the_candidates_process(resident: Resident, faulty: Compiled) -> None:
    run(resident, faulty, 0)
    assert resident.call([], 5.0) > 0


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (1, "crashed"),
        (3, "exited-early"),
        (4, "exited-early"),
        (5, "forbidden-system-call"),
        (7, "stopped-answering"),
        (8, "forged-reply"),
        (9, "forbidden-system-call"),
        (10, "forbidden-system-call"),
        (11, "crashed"),
        (13, "forbidden-system-call"),
    ],
    ids=["segfault", "exit", "_exit", "fork bomb", "closes all", "garbage on all", "socket", "exec", "abort", "kill"],
)
def test_a_fault_ends_the_process_and_says_how(resident: Resident, faulty: Compiled, fault: int, code: str) -> None:
    with pytest.raises(WorkerFailure) as failure:
        run(resident, faulty, fault)
    assert failure.value.finding.code == code
    assert resident.ended


@pytest.mark.parametrize("fault", [2, 18], ids=["endless loop", "endless loop that ignores signals"])
def test_a_hung_call_is_killed_at_its_limit(resident: Resident, faulty: Compiled, fault: int) -> None:
    with pytest.raises(WorkerFailure) as failure:
        run(resident, faulty, fault, timeout=0.5)
    assert failure.value.finding.code == "timed-out"
    assert failure.value.finding.details["limit"] == 0.5


def test_after_a_fault_the_next_resident_starts_clean(
    cpu_worker: Worker, faulty: Compiled, images: CompileCache
) -> None:
    with cpu_worker.open(readable=[images.root]) as broken, pytest.raises(WorkerFailure):
        run(broken, faulty, 1)
    with cpu_worker.open(readable=[images.root]) as fresh:
        assert not run(fresh, faulty, 0).unwritten("out").any()


def test_a_dead_resident_keeps_saying_how_it_ended(resident: Resident, faulty: Compiled) -> None:
    with pytest.raises(WorkerFailure):
        run(resident, faulty, 1)
    with pytest.raises(WorkerFailure, match="crashed with SIGSEGV"):
        resident.call([], 1.0)


def test_a_write_beyond_a_buffer_is_found_with_its_distance(resident: Resident, faulty: Compiled) -> None:
    arena = run(resident, faulty, 6)
    assert arena.damaged_guard() == ("out", 7 * 4 + 1)


def test_work_left_to_a_background_thread_is_missing_when_the_judge_looks(resident: Resident, faulty: Compiled) -> None:
    arena = run(resident, faulty, 12)
    assert arena.unwritten("out").all()
    time.sleep(0.5)  # stopped, so the thread makes no progress however long the judge takes
    assert arena.unwritten("out").all()


@pytest.mark.parametrize("fault", [14, 15, 16, 17], ids=["writes a file", "a terabyte", "reads secrets", "code pages"])
def test_what_is_refused_fails_and_the_call_goes_on(resident: Resident, faulty: Compiled, fault: int) -> None:
    assert not run(resident, faulty, fault).unwritten("out").any()  # the source returns early where it succeeds
    assert not Path("/tmp/written-by-a-kernel").exists()


def test_a_resident_reports_only_layers_it_has_checked(resident: Resident) -> None:
    from validator.sandbox.probe import LAYERS

    assert set(resident.layers) <= set(LAYERS)
    assert {"session", "resource-limits", "no-new-privileges"} <= set(resident.layers)


def test_processor_time_is_limited(cpu_worker: Worker, faulty: Compiled, images: CompileCache) -> None:
    limits = Limits(cpu_seconds=1)
    with cpu_worker.open(readable=[images.root], limits=limits) as resident, pytest.raises(WorkerFailure) as failure:
        run(resident, faulty, 2, timeout=20)
    assert failure.value.finding.code == "limit-exceeded"


def test_without_namespaces_the_worker_still_judges(cpu_worker: Worker, faulty: Compiled, images: CompileCache) -> None:
    with cpu_worker.open(readable=[images.root], namespaces=False) as resident:
        assert "pid-namespace" not in resident.layers
        assert not run(resident, faulty, 0).unwritten("out").any()
    with cpu_worker.open(readable=[images.root], namespaces=False) as resident, pytest.raises(WorkerFailure):
        run(resident, faulty, 2, timeout=0.3)


def test_a_judge_that_dies_takes_its_worker_and_candidate_along(faulty: Compiled, images: CompileCache) -> None:
    worker = Worker(Target.CPU)
    resident = worker.open(readable=[images.root])
    supervisor = worker._process.pid
    children = [int(p) for p in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()]

    def hang_for_ever() -> None:
        with pytest.raises(WorkerFailure):
            run(resident, faulty, 2, 30.0)

    hang = threading.Thread(target=hang_for_ever)
    hang.start()
    time.sleep(0.3)
    worker._channel._socket.shutdown(2)  # as the kernel does for a killed judge
    worker._process.wait(15)
    hang.join(15)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and any(_alive(pid) for pid in children):
        time.sleep(0.01)
    assert children
    assert not any(_alive(pid) for pid in children)
    worker.close()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_a_killed_supervisor_fails_the_candidate(faulty: Compiled, images: CompileCache) -> None:
    worker = Worker(Target.CPU)
    resident = worker.open(readable=[images.root])
    os.kill(worker._process.pid, signal.SIGKILL)
    with pytest.raises(WorkerFailure, match="channel broke"):
        resident.call([], 1.0)
    worker.close()
