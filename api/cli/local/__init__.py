"""Commands of `compactor`, on this machine's database and store."""
