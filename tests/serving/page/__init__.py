"""Tests of serving/page."""
