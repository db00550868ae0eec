"""Load, launch, time, select and run kernels; the decode engine."""
