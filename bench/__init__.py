"""How fast: the emitted graphs beside their peers and the machine's own limit, each in a process of its own, in turns."""
