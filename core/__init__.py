"""What every other part stands on: errors, the ABI of a graph, the cache. No models, no compilers."""
