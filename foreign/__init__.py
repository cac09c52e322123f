"""Graphs of another convention than the contract's: their ABI file, how they are read, and what adapts them to it."""
