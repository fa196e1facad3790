"""From paths to reports: find files, read them, predict, run the rules, apply ignores and baseline."""
