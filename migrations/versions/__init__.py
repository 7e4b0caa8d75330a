"""One file a revision, numbered in the order in which they happen."""
