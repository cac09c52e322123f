"""Everything a run found: the one thing that reports are drawn from."""
