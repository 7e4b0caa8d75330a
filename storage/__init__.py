"""Storage of messages, ledgers and cursors. Must not know: Spark, HTTP."""
