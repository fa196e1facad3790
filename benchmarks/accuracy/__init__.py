"""How right memlint is: predictions against traced reference points and published measurements."""
