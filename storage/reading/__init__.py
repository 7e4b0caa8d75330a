"""From a position to messages: raw, compacted, page by page, and by key."""
