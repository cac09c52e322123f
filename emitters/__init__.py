"""StableHLO as text: types, the Builder, the layers, one short file per architecture. No JAX, no MLIR bindings."""
