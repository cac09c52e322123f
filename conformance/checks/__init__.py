"""What is checked: one question with a figure, a limit and a status."""
