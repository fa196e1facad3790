"""Operations: each states its output, what it saves for backward, its temporaries, and the PyTorch source of these."""
