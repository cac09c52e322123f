"""The record of a run, and what is drawn from it: a page, a comment, a test report."""
