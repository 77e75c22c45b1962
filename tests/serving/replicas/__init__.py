"""Tests of serving/replicas."""
