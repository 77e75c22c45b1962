"""Tests of serving/observers."""
