"""Predictions as pictures: one self-contained HTML page, or PNG and SVG files."""
