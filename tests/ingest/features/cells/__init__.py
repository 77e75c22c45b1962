"""Tests of the path from a cell to a value, a list, a label or a time."""
