"""Releases of compilers against each other: one graph on one of them, the first that is wrong, and what an upgrade changes."""
