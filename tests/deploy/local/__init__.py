"""Tests of deploy/local."""
