"""From characters to tokens and expression trees."""
