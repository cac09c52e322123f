"""The blocks of each architecture in JAX, in the order of the transformers module that it matches."""
