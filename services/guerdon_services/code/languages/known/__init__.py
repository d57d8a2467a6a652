"""One module per language, each with a `LANGUAGE`."""
