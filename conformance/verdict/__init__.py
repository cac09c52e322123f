"""What follows from the checks: a class, a place, and how sure that is."""
