"""The record of a fleet, and what is drawn from it."""
