"""Tests of serving/requests."""
