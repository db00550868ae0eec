"""Step by step from eager to the authored kernels, on one GPU and in one run: what each step of the way brings.

    python bench/gpu/ladder.py --out DIR [--model qwen3-4b] [--store kernels] [--rounds 3] [--tokens 512] [--compiled]
                               [--only NAME]

One request of 128 prompt tokens, random weights, greedy. Every rung holds what the one before it had and one thing
more: Hugging Face eager, the engine on torch operations, full-step graphs, template kernels, Triton baselines, and the
admitted kernels of the store; from the templates on, every site is chosen by measurement. All engines are alive at once
and are timed in turn, ``--rounds`` times, in an order that rotates; the middle time counts. The tokens of every rung
are judged by the tie rule against Hugging Face in float32, on the same weights. ``--compiled`` adds Hugging Face with a
static cache under ``torch.compile``. ``--only`` names a part of the rungs to build, and leaves Hugging Face out but as
the judge of their tokens. Writes ``ladder.json`` and ``ladder.log`` into DIR; exit status 1 when a rung
failed or gave tokens no tie explains.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from bench.gpu.engine_model import decode, prompts
from bench.gpu.model_configs import CONFIGS, DRY_RUN
from bench.gpu.report import Report
from generator.kernel_templates.contracts import template_candidates
from kb.contract import Contract
from kb.dtype import Target
from kb.library import library_root, load_library
from kb.store import KernelStore
from runtime.bandwidth import measure_bandwidth
from runtime.device import DeviceInfo, device_for
from runtime.engine.config import EngineConfig
from runtime.engine.engine import Engine
from runtime.engine.implementations import KernelImplementation
from runtime.engine.selecting import CandidateList, as_table, select
from runtime.engine.speed import floor_ms
from runtime.engine.tie_rule import disagreements
from runtime.models.spec import DecoderSpec, spec_from_config
from runtime.models.weights import DecoderWeights, named_tensors, random_weights
from runtime.sites import Implementation, Site

PROMPT = 128
EAGER = "Hugging Face eager"
COMPILED = "Hugging Face, static cache, compiled"
TEMPLATES = 2  # template kernels of a contract that are offered, the most promising ones


@dataclass(frozen=True, slots=True)
class Rung:
    """An engine of the ladder; ``offers``: what its sites may choose from besides the library, None for nothing."""

    name: str
    graphs: bool
    offers: frozenset[str] | None = None


RUNGS = (
    Rung("engine, torch operations", graphs=False),
    Rung("+ full-step graphs", graphs=True),
    Rung("+ template kernels", graphs=True, offers=frozenset({"template"})),
    Rung("+ Triton baselines", graphs=True, offers=frozenset({"template", "baseline"})),
    Rung("+ authored kernels", graphs=True, offers=frozenset({"template", "baseline", "authored"})),
)


class Offer(CandidateList):
    """The engine's candidates, of some kinds only; templates come from their source, whether admitted or not."""

    def __init__(self, contracts: dict[str, Contract], store: KernelStore, device: DeviceInfo, kinds: frozenset[str]):
        super().__init__(contracts, store, device.target)
        self._kinds = kinds
        entries = (e for c in contracts for e in store.admitted(c, device.target))
        self._authored = {e.manifest.digest for e in entries if e.manifest.origin.authorship == "llm"}
        self._templates: dict[str, list[Implementation]] = {}
        for contract in contracts.values():
            made = template_candidates(contract, device.target, device.arch)[:TEMPLATES]
            self._templates[contract.id] = [KernelImplementation(t.candidate, contract) for t in made]

    def kernels(self, operation: str) -> Sequence[Implementation]:
        """Kernels of a contract, of the kinds asked for."""
        return [*self._own(operation), *filter(self._wanted, super().kernels(operation))]

    def __call__(self, site: Site) -> Sequence[Implementation]:
        return [*self._own(site.operation), *filter(self._wanted, super().__call__(site))]

    def _own(self, operation: str) -> list[Implementation]:
        return self._templates.get(operation, []) if "template" in self._kinds else []

    def _wanted(self, found: Implementation) -> bool:
        if found.digest is not None:
            return found.digest in self._authored and "authored" in self._kinds
        return found.name == "split" or "baseline" in self._kinds


class Ladder:
    """One model, its rungs, and what was seen of them."""

    def __init__(self, arguments: argparse.Namespace, report: Report) -> None:
        self.arguments, self.report = arguments, report
        target = Target.CUDA if arguments.device == "cuda" else Target.CPU
        self.device = device_for(target)
        self.torch_device = torch.device(arguments.device)
        self.gbps = measure_bandwidth(self.device).best_gbps
        report.record |= {"device": self.device.name, "driver": self.device.driver, "read_gbps": self.gbps}
        report.add("device", self.device.name, f"reads {self.gbps:.0f} GB/s; {dict(self.device.versions)}")
        self.config = (CONFIGS | DRY_RUN)[arguments.model]
        self.spec: DecoderSpec = spec_from_config(self.config, {})
        self.weights: DecoderWeights = random_weights(self.spec, self.torch_device, torch.bfloat16)
        self.contracts = dict(load_library(library_root()).contracts)
        self.store = KernelStore(Path(arguments.store))
        self.asked = prompts(1, PROMPT, self.spec.vocab_size)
        self.tokens: dict[str, tuple[int, ...]] = {}
        self.took: dict[str, list[float]] = {}

    def build(self, rung: Rung) -> Engine:
        """The rung's engine, its selection made and its graph recorded."""
        longest = PROMPT + self.arguments.tokens
        settings = {"max_batch": 1, "max_model_len": longest, "kv_blocks": 2 + -(-longest // 16), "prefix_cache": False}
        engine = Engine(self.spec, self.weights, EngineConfig(**settings, graphs=rung.graphs))
        if rung.offers is not None:
            started = time.perf_counter()
            with tempfile.TemporaryDirectory() as folder:
                choices = select(
                    engine.executor,
                    library_root(),
                    store=self.store,
                    buckets=(1,),
                    context=longest,
                    candidates=Offer(self.contracts, self.store, self.device, rung.offers),
                    cache=Path(folder),
                )
            table = as_table(choices)
            self.report.record.setdefault("selection", {})[rung.name] = table
            self.report.say(f"-- {rung.name}: chosen in {time.perf_counter() - started:.0f} s")
            for row in table:
                mark, step = "*" if row["chosen"] else " ", f"{row['step_us']:.0f} us" if row["step_us"] else "-"
                self.report.say(f"   {mark} {row['operation']} | {row['candidate']} | {step} | {row['why']}")
        decode(engine, self.asked, 8)
        return engine

    def time(self, engines: dict[str, Engine]) -> None:
        """Every engine in turn, in an order that rotates."""
        names = list(engines)
        for turn in range(self.arguments.rounds):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                [tokens], seconds, _ = decode(engines[name], self.asked, self.arguments.tokens)
                self.tokens.setdefault(name, tokens)
                self.took.setdefault(name, []).append(1e3 * seconds / (self.arguments.tokens - 1))
                if self.tokens[name] != tokens:
                    self.report.add("tokens", name, "other tokens in another turn", ok=False)

    def hugging_face(self) -> Any:
        """The model of transformers on the engine's own weights."""
        from transformers import AutoConfig, AutoModelForCausalLM

        parsed = AutoConfig.for_model(**self.config)
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            with self.torch_device:
                model = AutoModelForCausalLM.from_config(parsed).eval()
        finally:
            torch.set_default_dtype(before)
        held = dict(model.named_parameters())
        with torch.no_grad():
            for name, tensor in named_tensors(self.spec, self.weights):
                held.pop(name).copy_(tensor)
        left = [name for name in held if name != "lm_head.weight"]
        if left:
            raise ValueError(f"the engine has no weights for {left[:3]}")
        return model

    @torch.inference_mode()
    def generate(self, model: Any, name: str, cache: str | None = None) -> None:
        """Tokens and time of ``generate``; the time of half as many tokens is taken off, so the prompt drops out."""
        settings: dict[str, Any] = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        if cache is not None:
            settings["cache_implementation"] = cache
        ids = torch.tensor(self.asked, device=self.torch_device)
        count = self.arguments.tokens
        times = []
        for length in (count // 2, count) if cache is None else (count // 2, count, count // 2, count):
            self._wait()
            started = time.perf_counter()
            out = model.generate(ids, max_new_tokens=length, min_new_tokens=length, **settings)
            self._wait()
            times.append(time.perf_counter() - started)
        self.tokens[name] = tuple(out[0, PROMPT:].tolist())
        self.took[name] = [1e3 * (times[-1] - times[-2]) / (count - count // 2)]

    def _wait(self) -> None:
        if self.torch_device.type == "cuda":
            torch.cuda.synchronize()

    @torch.inference_mode()
    def judge_tokens(self, model: Any) -> None:
        """Every rung's tokens against float32 on the same weights, after the same earlier tokens."""
        torch.backends.cuda.matmul.allow_tf32 = False
        wide = model.float()
        for name, tokens in self.tokens.items():
            ids = torch.tensor([[*self.asked[0], *tokens[:-1]]], device=self.torch_device)
            logits = wide(ids, use_cache=False).logits[0, PROMPT - 1 :].float()
            beyond = disagreements(logits, tokens, torch.bfloat16)
            same = int((logits.argmax(-1).cpu() == torch.tensor(tokens)).sum())
            text = f"{same} of {len(tokens)} are float32's own, {len(tokens) - same - len(beyond)} ties"
            self.report.record.setdefault("tokens", {})[name] = {"same": same, "beyond": [str(d) for d in beyond]}
            self.report.add("tokens", name, text + (f", beyond a tie: {beyond[0]}" if beyond else ""), ok=not beyond)
            del logits

    def say_times(self, names: Sequence[str]) -> None:
        """The table, against the first of its rows."""
        floor = floor_ms(self.spec, self.weights, 1, PROMPT + self.arguments.tokens / 2, self.gbps)
        self.report.record["floor_ms"] = floor
        self.report.record["ms_per_token"] = self.took
        middle = {name: statistics.median(times) for name, times in self.took.items()}
        first = middle.get(EAGER) or max(middle.values())
        for name in (n for n in names if n in middle):
            took = middle[name]
            spread = f"{min(self.took[name]):.3f} to {max(self.took[name]):.3f}"
            text = (
                f"{took:.3f} ms a token ({spread}), {floor / took:.1%} of the floor ({floor:.3f}), {first / took:.2f}x"
            )
            self.report.add("ladder", name, text)

    def run(self) -> None:
        """Engines first, for what transformers holds would stand in their way."""
        engines = {}
        for rung in (r for r in RUNGS if self.arguments.only in r.name):
            try:
                engines[rung.name] = self.build(rung)
            except Exception as error:
                self.report.say(traceback.format_exc())
                self.report.add("ladder", rung.name, f"{type(error).__name__}: {error}"[:500], ok=False)
        self.time(engines)
        for engine in engines.values():
            engine.close()
        try:
            model = self.hugging_face()
            if not self.arguments.only:
                self.generate(model, EAGER)
            if self.arguments.compiled:
                self.generate(model, COMPILED, "static")
        finally:
            self.say_times([EAGER, COMPILED, *(rung.name for rung in RUNGS)])
            self.report.write(Path(self.arguments.out), "ladder")
        self.judge_tokens(model)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--model", default="qwen3-4b", choices=[*CONFIGS, *DRY_RUN])
    parser.add_argument("--store", default=str(library_root() / "kernels"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--only", default="", help="a part of the names of the rungs to build")
    parser.add_argument("--device", default="cuda", help="cpu, with --model tiny, for trying this script out")
    arguments = parser.parse_args()
    Path(arguments.out).mkdir(parents=True, exist_ok=True)
    report, started = Report(), time.perf_counter()
    try:
        Ladder(arguments, report).run()
    except Exception as error:
        report.say(traceback.format_exc())
        report.add("ladder", type(error).__name__, str(error)[:500], ok=False)
    report.record["seconds"] = time.perf_counter() - started
    report.write(Path(arguments.out), "ladder")
    report.print_table()
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
