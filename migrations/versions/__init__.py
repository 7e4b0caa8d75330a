"""The revisions: one file each, numbered in the order of their execution."""
