"""What a model is: its config, its weights, its anchors and its checkpoint. Neither JAX nor torch."""
