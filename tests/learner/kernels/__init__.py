"""Tests of learner/kernels."""
