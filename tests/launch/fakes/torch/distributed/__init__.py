"""Stands in for the real package, so that processes start in milliseconds."""
