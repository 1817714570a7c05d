"""Linting files: what kind each is, the rules on it, what is left out on request, and safe repairs."""
