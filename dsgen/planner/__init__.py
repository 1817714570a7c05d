"""Variants of a recipe, each checked, resolved and estimated anew: what would make a job fit, and comparisons."""
