"""Operations on topics and what belongs to them, the same for every door. It imports no web framework and no door."""
