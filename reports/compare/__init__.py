"""Two records side by side: what a change made better or worse."""
