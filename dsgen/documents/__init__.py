"""Reading documents with the position of every node, and writing a set of files at once."""
