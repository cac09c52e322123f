"""What `hloracle ops` found, as a record, and what is drawn from it."""
