"""Tests of deploy/experiments."""
