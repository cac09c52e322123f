"""Programs that run graphs for hloracle, each in a process and with a Python of its own: see docs/workers.md.

They are run by their path and import nothing of hloracle, so that NumPy and a runtime are all that they need.
"""
