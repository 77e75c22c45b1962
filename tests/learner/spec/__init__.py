"""Tests of learner/spec."""
