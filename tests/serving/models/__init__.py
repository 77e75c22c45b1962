"""Tests of serving/models."""
