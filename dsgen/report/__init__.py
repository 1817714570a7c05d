"""Results to text and JSON. Computes nothing."""
