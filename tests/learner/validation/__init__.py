"""Tests of learner/validation."""
