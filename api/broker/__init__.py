"""Operations on topics, subscriptions and messages that every door calls; they know no HTTP and no wire protocol."""
