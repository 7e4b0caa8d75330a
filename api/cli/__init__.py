"""Command lines: `compactor`, which works on the store and database itself."""
