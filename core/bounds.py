"""The most that can be asked for: more would take hours, or all memory, before anything could be said of it."""

from __future__ import annotations

# Slots of a cache, and with it positions and tokens: a graph holds RoPE's angles at each. That of a head of 128 dimensions
# has 134 MB at so many.
CAPACITY = 2**17
# Rows of a batch.
BATCH = 1024
# Four times as many as the deepest model that is published; a graph of so many is written in 7 s.
LAYERS = 512
# As many as the largest machines have, or more: each is one of the operating system, made before anything runs.
THREADS = 1024
# Processes at a time: each takes some hundred MB.
JOBS = 256
# Of a comparison that takes turns; a round takes from some milliseconds to minutes.
ROUNDS = 1000
# Runs of a graph, to find out what its arguments are; they end with the time that is given, too.
TRIES = 10**6
# A week: what takes longer does not end.
SECONDS = 7 * 24 * 3600.0
