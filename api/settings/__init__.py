"""One table of settings, and where their values come from."""
