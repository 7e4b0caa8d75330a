"""Command lines: `compactor`, on the store and database itself, and `compactor-admin`, over HTTP."""
