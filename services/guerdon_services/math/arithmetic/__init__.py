"""Values of expressions: exact, modular, in balls."""
