"""What goes wrong around a run, made to happen on purpose: full disks, torn entries, killed children, clocks that jump.

`table.py` has a row for each, `faults.py` how each is made, `judge.py` what is held against what came of it. See
docs/injected-faults.md.
"""
