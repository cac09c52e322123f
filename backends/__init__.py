"""Runs graphs: the session contract, and IREE and XLA behind it. Backends know graphs and arrays, not models."""
