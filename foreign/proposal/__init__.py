"""Proposes the ABI file of somebody else's emitter: candidates from names and types, then what computes right."""
