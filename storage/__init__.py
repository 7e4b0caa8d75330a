"""Where messages, ledgers and cursors live. Knows nothing of Spark or HTTP."""
