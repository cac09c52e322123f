"""Many commands of hloracle, each a process of its own, on as many machines as there are."""
