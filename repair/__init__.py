"""What would put a wrong graph right: one operation of it after another is changed, until it gives what the reference has."""
