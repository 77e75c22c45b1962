"""The README, the tutorial and the examples run as they are written."""
