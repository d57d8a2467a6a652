"""From tokens to typed shapes: quantities, intervals, sets, tuples, relations, matrices."""
