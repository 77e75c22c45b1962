"""Tests of serving/api."""
