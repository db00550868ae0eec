"""Templates of kernels: a spec says what to compute, parameters say how, and a candidate comes out.

    for parameters in space(spec, Target.CUDA, "sm_90", dims):
        candidate = instantiate(spec, parameters, contract, Target.CUDA)

``legal(spec, parameters, target, arch, dims)`` gives the reason why a combination cannot be, or None. The contract
decides the signature: every tensor and scalar a spec names is one of the contract's. Nothing here reads a graph or
needs torch, and nothing here is ever shown to an author of kernels.
"""
