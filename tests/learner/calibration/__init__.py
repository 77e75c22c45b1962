"""Tests of learner/calibration."""
