"""What the benchmarks share: labelled cases, the sides that judge them, and a process per side that is timed."""
