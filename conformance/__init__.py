"""Runs the proof: prompts, cells, checks, the verdict, and the command line."""
