"""The page of one run: its parts, and what other pages are drawn with too."""
