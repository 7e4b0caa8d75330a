"""Messages outside of the store: input formats, output formats, text encodings of bytes."""
