"""The command line: one file per command; each parses, calls a room, reports, and returns an exit code."""
