"""Judge the template kernels of a contract on this machine and admit those that are accepted.

python -m generator.kernel_templates gated_mlp_up --target cuda --store kernels [--dims num_tokens=1,…] [--most 3]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kb.dtype import Target


def main() -> int:
    """Exit status 0 when a kernel was admitted, 1 when none was."""
    from generator.cli.arguments import DIMS_HELP, parse_dims
    from generator.kernel_templates.admitting import admit_templates
    from kb.cli.failure import Failure
    from kb.library import library_root, load_library
    from kb.store import KernelStore
    from runtime.compile_cache import default_root
    from runtime.device import device_for
    from validator.gates import Options
    from validator.judge import judge

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contract")
    parser.add_argument("--target", type=Target, default=Target.CUDA, choices=list(Target))
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--dims", action="append", default=[], help=DIMS_HELP)
    parser.add_argument("--most", type=int, default=None, help="candidates to try")
    parser.add_argument("--seconds", type=float, default=4.0, help="of timing a shape")
    given = parser.parse_args()
    contract = load_library(library_root()).contracts.get(given.contract)
    if contract is None:
        parser.error(f"there is no contract '{given.contract}'")
    try:
        timed = tuple(parse_dims(text, contract) for text in given.dims)
    except Failure as failure:
        parser.error(str(failure))
    options = Options(timed=timed, timing_seconds=given.seconds, turns=default_root() / "turns")
    found = admit_templates(
        contract,
        given.target,
        device_for(given.target).arch,
        KernelStore(given.store),
        lambda candidate: judge(candidate, contract, options=options),
        most=given.most,
    )
    admitted = 0
    for tried in found:
        failed = tried.verdict.failed_gate
        ratios = ", ".join(f"{t.ratio:.2f} x {t.baseline}" for t in tried.verdict.timings)
        reason = f"{failed.gate.value}: {failed.findings[0].message}" if failed and failed.findings else "not accepted"
        words = "admitted" if tried.admitted else reason
        print(f"{tried.template.candidate.digest[:12]} {words}; {ratios}; {tried.template.description}", flush=True)
        admitted += tried.admitted
    return 0 if admitted else 1


if __name__ == "__main__":
    sys.exit(main())
