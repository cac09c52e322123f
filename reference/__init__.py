"""What an architecture is: its config, checkpoint and RoPE tables, its JAX model (the oracle), and the truth.

`config.py`, `checkpoint.py` and `rope.py` do not import JAX; emitters may use these three.
"""
