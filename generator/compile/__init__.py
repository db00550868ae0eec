"""From a module to kernels in place of its regions, chosen by measurement, and a folder that stands alone."""
