"""What qualifies the harness: deliberate faults, right models, and all that a run could observe."""
