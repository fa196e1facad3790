"""Findings and estimates as text, JSON, SARIF and annotations; knows not how findings are made."""
