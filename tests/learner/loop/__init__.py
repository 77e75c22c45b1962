"""Tests of learner/loop."""
