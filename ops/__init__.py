"""Tries a backend on every operation that language models use, one small graph after another."""
