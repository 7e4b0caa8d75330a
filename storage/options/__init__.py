"""Named options: the kinds of values, the policies that there are, and which of several settings counts."""
