"""What benchmarks/simulate.py is made of."""
