"""Tests of what runs headrace on a cluster: the chart, the compose file and the image."""
