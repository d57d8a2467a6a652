"""Small runs of every paper's recipe, side by side; `make experiments` runs them and writes a page."""
