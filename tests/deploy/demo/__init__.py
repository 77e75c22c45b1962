"""Tests of deploy/demo."""
