"""What Hugging Face transformers computes: tokens, logits and the values at anchors, with their noise floor."""
