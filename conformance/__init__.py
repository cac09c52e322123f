"""A run: what is asked, what is run, what is checked, and the verdict."""
