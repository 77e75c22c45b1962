"""Tests of learner/models."""
