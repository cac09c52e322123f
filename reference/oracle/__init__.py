"""The JAX model of every architecture, and how it is lowered to StableHLO."""
