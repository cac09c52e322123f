"""The blocks of each architecture, beside those of the reference that they mirror."""
