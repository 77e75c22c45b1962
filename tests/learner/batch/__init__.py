"""Tests of fits: learning from files."""
