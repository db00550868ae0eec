"""Weights arrive fused and whole, or an error names every tensor that is wrong before anything is allocated."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from runtime.models.spec import ModelError, read_spec
from runtime.models.weights import DecoderWeights, all_parts, load_weights, named_tensors, random_weights, weight_bytes
from tests.runtime.engine.checkpoints import build, save

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Qwen3 checkpoint in one file."""
    return save(build("qwen3"), tmp_path)


def edit(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Rewrite the checkpoint's tensors."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def load(folder: Path, dtype: torch.dtype = torch.float32) -> DecoderWeights:
    return load_weights(folder, read_spec(folder), CPU, dtype)


def equal(a: DecoderWeights, b: DecoderWeights) -> bool:
    pairs = [(a.embed, b.embed), (a.lm_head, b.lm_head), (a.final_norm, b.final_norm)]
    for one, other in zip(a.layers, b.layers, strict=True):
        pairs += [(getattr(one, name), getattr(other, name)) for name in one.__slots__]
    return all((x is None and y is None) or torch.equal(x, y) for x, y in pairs)


def test_projections_that_read_the_same_rows_are_stacked(folder: Path) -> None:
    tensors, weights = load_file(folder / "model.safetensors"), load(folder)
    at = "model.layers.1"
    qkv = torch.cat([tensors[f"{at}.self_attn.{p}_proj.weight"] for p in "qkv"])
    gate_up = torch.cat([tensors[f"{at}.mlp.{p}_proj.weight"] for p in ("gate", "up")])
    assert torch.equal(weights.layers[1].w_qkv, qkv)
    assert torch.equal(weights.layers[1].w_gate_up, gate_up)
    assert weights.layers[1].w_qkv.is_contiguous()


def test_a_sharded_checkpoint_loads_the_same(folder: Path, tmp_path: Path) -> None:
    sharded = save(build("qwen3"), tmp_path / "sharded", max_shard_size="100KB")
    assert (sharded / "model.safetensors.index.json").exists()
    assert len(list(sharded.glob("*.safetensors"))) > 2
    assert equal(load(folder), load(sharded))


def test_tied_embeddings_are_one_tensor(tmp_path: Path) -> None:
    weights = load(save(build("qwen3-tied-mha"), tmp_path))
    assert weights.lm_head is weights.embed


def test_tied_embeddings_follow_the_flag_and_not_the_file(folder: Path) -> None:
    edit(folder, lambda t: t.pop("lm_head.weight"))
    with pytest.raises(ModelError, match=r"1 missing tensor: lm_head\.weight"):
        load(folder)


def test_a_stored_head_that_the_flag_ties_is_not_an_error(tmp_path: Path) -> None:
    folder = save(build("qwen3-tied-mha"), tmp_path)
    edit(folder, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    assert load(folder).lm_head is not None


def test_every_missing_tensor_is_named(folder: Path) -> None:
    names = ["model.norm.weight", "model.layers.2.mlp.up_proj.weight"]
    edit(folder, lambda t: [t.pop(n) for n in names])  # type: ignore[arg-type, return-value]
    with pytest.raises(ModelError, match=re.escape(f"2 missing tensors: {names[0]}, {names[1]}")):
        load(folder)


def test_a_tensor_nobody_reads_is_an_error(folder: Path) -> None:
    edit(folder, lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(96)}))
    with pytest.raises(ModelError, match="1 unexpected tensor: model"):
        load(folder)


def test_buffers_older_exporters_stored_are_recomputed(folder: Path) -> None:
    edit(folder, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)}))
    load(folder)


def test_a_misshaped_tensor_is_named_with_both_shapes(folder: Path) -> None:
    edit(folder, lambda t: t.update({"model.norm.weight": torch.zeros(47)}))
    with pytest.raises(ModelError, match=r"model.norm.weight is \[47\], the config says \[48\]"):
        load(folder)


def test_nothing_is_allocated_before_the_names_are_checked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edit(folder, lambda t: t.pop("model.norm.weight"))
    monkeypatch.setattr(torch, "empty", lambda *a, **k: pytest.fail("allocated"))
    with pytest.raises(ModelError, match="missing"):
        load(folder)


def test_weights_that_do_not_fit_are_refused_before_anything_is_allocated(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.models.weights.free_bytes", lambda device: 1000)
    monkeypatch.setattr(torch, "empty", lambda *a, **k: pytest.fail("allocated"))
    with pytest.raises(ModelError, match=r"GiB as float32 and cpu has 0\.0 GiB free; use a narrower"):
        load(folder)


def test_a_file_cut_short_is_an_error(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelError, match="ends inside tensor"):
        load(folder)


@pytest.mark.parametrize("content", [b"", b"\x00" * 20, b"\xff" * 40, b"\x05\x00\x00\x00\x00\x00\x00\x00{]}]}"])
def test_a_file_that_is_not_safetensors_is_an_error(content: bytes, folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match=r"model.safetensors: "):
        load(folder)


def test_a_folder_without_weights_is_an_error(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"no \*\.safetensors file"):
        load(folder)


def test_a_shard_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    folder = save(build("qwen3"), tmp_path, max_shard_size="100KB")
    next(iter(sorted(folder.glob("*.safetensors")))).unlink()
    with pytest.raises(ModelError, match="cannot be read"):
        load(folder)


def test_weights_are_converted_to_the_type_asked_for(folder: Path) -> None:
    narrow, wide = load(folder, torch.bfloat16), load(folder)
    assert narrow.embed.dtype == torch.bfloat16
    assert torch.equal(narrow.layers[0].w_down, wide.layers[0].w_down.bfloat16())


@pytest.mark.parametrize("name", ["qwen3", "glm4"])
def test_weights_go_back_to_their_checkpoint_names(name: str, tmp_path: Path) -> None:
    folder = save(build(name), tmp_path)
    spec = read_spec(folder)
    found = dict(named_tensors(spec, load_weights(folder, spec, CPU, torch.float32)))
    stored = {n: t.float() for n, t in load_file(folder / "model.safetensors").items() if n in found}
    assert set(found) == {n for part in all_parts(spec) for n, _ in part.sources} == set(stored)
    assert all(torch.equal(found[n], stored[n]) for n in found)


def test_random_weights_have_the_shapes_of_loaded_ones(folder: Path) -> None:
    spec = read_spec(folder)
    drawn, loaded = random_weights(spec, CPU, torch.float32), load(folder)
    for one, other in zip(drawn.layers, loaded.layers, strict=True):
        for name in one.__slots__:
            a, b = getattr(one, name), getattr(other, name)
            assert (a is None and b is None) or a.shape == b.shape
    assert drawn.nbytes == loaded.nbytes == weight_bytes(spec, 4)


def test_peak_memory_is_the_weights_and_a_staging_buffer(folder: Path, tmp_path: Path) -> None:
    """In a process of its own: 60 MiB of bfloat16 weights may cost their size and 40 MiB, not twice their size."""
    config = json.loads((folder / "config.json").read_text())
    config |= {"hidden_size": 1024, "intermediate_size": 3072, "dtype": "bfloat16"}
    big = tmp_path / "big"
    big.mkdir()
    (big / "config.json").write_text(json.dumps(config))
    sources = [source for part in all_parts(read_spec(big)) for source in part.sources]
    tensors = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in sources}
    save_file(tensors, big / "model.safetensors")
    code = f"""
import torch
from pathlib import Path
from runtime.engine.speed import peak_host_bytes
from runtime.models.spec import read_spec
from runtime.models.weights import load_weights
folder = Path({str(big)!r})
before = peak_host_bytes()
weights = load_weights(folder, read_spec(folder), torch.device("cpu"), torch.bfloat16)
print(peak_host_bytes() - before, weights.nbytes)
"""
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    grown, weights = map(int, out.split())
    assert weights > 48 * 2**20
    assert weights / 2 < grown < weights + 40 * 2**20
