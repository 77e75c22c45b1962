"""Tests of the deep architectures."""
