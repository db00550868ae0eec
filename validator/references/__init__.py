"""The float64 truth of every contract.

Nothing is rounded on the way except where the contract makes a rounding point binding; there the value is rounded to
the storage type and carried on in float64. The outputs themselves are not rounded (see Expected).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kb.contract import Contract
from runtime.programs import find_program
from validator.inputs.call_inputs import CallInputs
from validator.references import decoder, encoder
from validator.references.arithmetic import Rounding, rounding_as
from validator.references.call import Call
from validator.references.expected import Expected
from validator.references.program import run_wide

# The reference of contracts that are stated by a program (runtime.programs).
PROGRAM = "program"

_REFERENCES: dict[str, Callable[[Call], dict[str, Expected]]] = {
    "residual_rmsnorm": decoder.residual_rmsnorm,
    "rope": decoder.rope,
    "kv_append": decoder.kv_append,
    "attention_prelude": decoder.attention_prelude,
    "gated_mlp_up": decoder.gated_mlp_up,
    "gated_mlp_down": decoder.gated_mlp_down,
    "o_proj_residual_rmsnorm": decoder.o_proj_residual_rmsnorm,
    "lm_head_argmax": decoder.lm_head_argmax,
    "paged_decode_attention": decoder.paged_decode_attention,
    "encoder_qkv": encoder.encoder_qkv,
    "encoder_attention": encoder.encoder_attention,
    "encoder_mlp": encoder.encoder_mlp,
}


def reference(contract: Contract, dims: Mapping[str, int], inputs: CallInputs) -> dict[str, Expected]:
    """What every written tensor must hold after one call on ``inputs``, computed on the device the inputs are on.

    The inputs are only read. Raises ValueError when the contract names a reference that does not exist.
    """
    if contract.numerics.reference == PROGRAM and (program := find_program(contract.id)) is not None:
        return run_wide(program, Call(dims, inputs.tensors, inputs.scalars))
    try:
        function = _REFERENCES[contract.numerics.reference]
    except KeyError:
        known = ", ".join(sorted(_REFERENCES))
        raise ValueError(
            f"{contract.id}: no reference is called '{contract.numerics.reference}' (known: {known})"
        ) from None
    return function(Call(dims, inputs.tensors, inputs.scalars))


__all__ = ["PROGRAM", "Expected", "Rounding", "reference", "rounding_as"]
