"""Equality of shapes, by kind."""
