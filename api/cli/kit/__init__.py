"""Parts that both command lines share: options, errors, tables, exit codes."""
