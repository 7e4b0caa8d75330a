"""Routes of subscriptions: cursors, and what is before them."""
