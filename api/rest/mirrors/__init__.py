"""Routes of mirrors of Kafka's topics."""
