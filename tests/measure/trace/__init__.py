"""Tests of the parts that need torch."""
