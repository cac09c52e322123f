"""What is run: a configuration is a source on a backend."""
