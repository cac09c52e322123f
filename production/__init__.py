"""Production graphs: how they are written and compiled, as files, and as an inference session."""
