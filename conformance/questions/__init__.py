"""What a run asks: prompts, streams and the reference's answers."""
