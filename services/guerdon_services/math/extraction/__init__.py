"""Finding the final answer in a response."""
