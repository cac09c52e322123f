"""The graphs that are judged, and what is read off them before they are run."""
