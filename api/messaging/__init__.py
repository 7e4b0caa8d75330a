"""Open logs of topics, and which partition a key goes to."""
