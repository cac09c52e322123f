"""Runs the proof: prompts, configurations, checks, the verdict, and the command line."""
