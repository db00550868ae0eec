"""Write a checkpoint with random weights at a model's real sizes, for commands that want a folder.

python bench/gpu/random_checkpoint.py llama3.2-3b FOLDER [--device cuda]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from safetensors.torch import save_file

from bench.gpu.model_configs import CONFIGS, DRY_RUN
from runtime.models.spec import spec_from_config
from runtime.models.weights import named_tensors, random_weights


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=[*CONFIGS, *DRY_RUN])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda", help="where the weights are drawn")
    given = parser.parse_args()
    config = (CONFIGS | DRY_RUN)[given.model]
    spec = spec_from_config(config, {})
    weights = random_weights(spec, torch.device(given.device), torch.bfloat16)
    given.folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.contiguous() for name, tensor in named_tensors(spec, weights)}
    save_file(tensors, given.folder / "model.safetensors", metadata={"format": "pt"})
    (given.folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    print(f"{given.folder}: {sum(t.nbytes for t in tensors.values()) / 1e9:.2f} GB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
