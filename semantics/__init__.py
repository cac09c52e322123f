"""What StableHLO's operations mean, in NumPy: a graph read into plain values, and evaluated in float64.

It is neither a compiler nor StableHLO's own interpreter, so it can be asked of a graph thousands of times with something changed.
"""
