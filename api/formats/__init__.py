"""How messages look outside: input formats, output formats, text encodings of bytes."""
