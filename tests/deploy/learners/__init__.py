"""Tests of deploy/learners."""
