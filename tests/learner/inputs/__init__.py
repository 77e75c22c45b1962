"""Tests of learner/inputs."""
