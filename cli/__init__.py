"""The command line, over the API."""
